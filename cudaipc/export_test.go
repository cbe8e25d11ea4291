//go:build !nogpu

package cudaipc

// What the tests of real drivers need of the inside. They are a package of their own,
// since the emulated driver's package leads to clients that import this one.

// ProbeBelow is Probe with the kernel's files below another root, which ends in a slash.
func ProbeBelow(path, root string) Report { return probe(path, root) }

// The line that a self-test's child answers when all is well.
const SelfTestSuccess = `{"Step":""}`
