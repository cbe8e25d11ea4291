package callboard

// The version of this client: three numbers, the same in every language of a release (behaviour 321).
const (
	VersionMajor = 0
	VersionMinor = 1
	VersionPatch = 0
)
