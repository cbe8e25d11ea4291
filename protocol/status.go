package protocol

// Status is the outcome of an operation, an attach or a request. The number is
// the API; texts are for people.
type Status uint32

// The status codes. Numbers never change and are never given to another name.
const (
	// StatusOK: done.
	StatusOK Status = 0
	// StatusInvalidArgument: an input is wrong whatever the state of the stage.
	StatusInvalidArgument Status = 1
	// StatusInvalidHandle: no such query, session, group or op, or not any more.
	StatusInvalidHandle Status = 2
	// StatusNotFound: no such path, token, attribute or prim.
	StatusNotFound Status = 3
	// StatusAlreadyExists: INSERT met an existing prim, or a second claim came late.
	StatusAlreadyExists Status = 4
	// StatusFloorViolation: the ordinal is at or below the write floor, or a read's end above it.
	StatusFloorViolation Status = 5
	// StatusNotSupported: well-formed, but this build does not do it.
	StatusNotSupported Status = 6
	// StatusQueueFull: too much is outstanding; try again after a completion or a seal.
	StatusQueueFull Status = 7
	// StatusEnd: iteration is over; not an error.
	StatusEnd Status = 8
	// StatusOutOfMemory: the pool or the file system has no room.
	StatusOutOfMemory Status = 9
	// StatusLayoutChanged: the rows moved while they were in use.
	StatusLayoutChanged Status = 10
	// StatusTimeout: not done yet; wait again.
	StatusTimeout Status = 11
	// StatusOpFailed: the op failed for a reason that has no code of its own.
	StatusOpFailed Status = 12
	// StatusOutOfRange: the state of that ordinal is not retained.
	StatusOutOfRange Status = 13
	// StatusLimit: this client uses more than its share; the text says of what.
	StatusLimit Status = 14
	// StatusSessionEnded: the broker ended this client's session; the text says why.
	StatusSessionEnded Status = 15
	// StatusAccessDenied: another user, or a capability that this credential lacks.
	StatusAccessDenied Status = 16
	// StatusBrokerRestarted: the broker restarted before the op was sealed; submit it again.
	StatusBrokerRestarted Status = 17
	// StatusIncompatibleVersion: the peer speaks another ABI major version; the text names both.
	StatusIncompatibleVersion Status = 18
	// StatusInternal: an invariant of ours broke; the text holds numbers for a bug report.
	StatusInternal Status = 19
)

// StatusCount is one more than the highest status code.
const StatusCount = 20

var statusNames = [StatusCount]string{
	"OK", "INVALID_ARGUMENT", "INVALID_HANDLE", "NOT_FOUND", "ALREADY_EXISTS",
	"FLOOR_VIOLATION", "NOT_SUPPORTED", "QUEUE_FULL", "END", "OUT_OF_MEMORY",
	"LAYOUT_CHANGED", "TIMEOUT", "OP_FAILED", "OUT_OF_RANGE", "LIMIT",
	"SESSION_ENDED", "ACCESS_DENIED", "BROKER_RESTARTED", "INCOMPATIBLE_VERSION", "INTERNAL",
}

var statusTexts = [StatusCount]string{
	"done",
	"an argument is not valid",
	"the handle is unknown or was released",
	"nothing of that name exists",
	"it exists already",
	"the ordinal is on the wrong side of the write floor",
	"this build does not support the request",
	"too much is outstanding, try again later",
	"no more elements",
	"no memory is left for it",
	"the layout changed meanwhile",
	"not finished within the time given",
	"the operation failed",
	"the state of that ordinal is not retained",
	"a limit of this client is reached",
	"the broker ended this session",
	"access denied",
	"the broker restarted before this was sealed",
	"the peer speaks an incompatible protocol version",
	"an internal invariant was broken",
}

// String is the stable name, for example "FLOOR_VIOLATION".
func (s Status) String() string {
	if s < StatusCount {
		return statusNames[s]
	}
	return "STATUS_" + itoa(uint32(s))
}

// Text is a short sentence for people; every code has its own (behaviour 222).
func (s Status) Text() string {
	if s < StatusCount {
		return statusTexts[s]
	}
	return "unknown status " + itoa(uint32(s))
}
