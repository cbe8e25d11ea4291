//go:build !linux || (!amd64 && !arm64) || nogpu

package cudaipc

// Load always fails: this program was built without device support.
func Load(string) (Driver, error) { return nil, ErrNotBuilt }
