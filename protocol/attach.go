package protocol

import "structs"

// The attach socket is a Unix SOCK_SEQPACKET socket. A message is one fixed
// struct; descriptors travel beside it as SCM_RIGHTS. The client speaks first.
//
//	client                                   broker
//	  HelloRequest ─────────────────────────▶  checks version, uid, limits
//	  ◀──────────── HelloReply + 3 descriptors: channel, directory (read-only), doorbell
//	  SegmentRequest ───────────────────────▶
//	  ◀──────────── SegmentReply + 1 descriptor
//	  ...
//	  ◀──────────── ErrorReply (SESSION_ENDED), then the broker hangs up
//
// Whoever hangs up ends the session (rule I2).

// MessageBytesMax bounds every message.
const MessageBytesMax = 512

// MessageHeader is the first 16 bytes of every message.
type MessageHeader struct {
	_ structs.HostLayout

	// Magic is MagicMessage.
	Magic uint32
	// Version is the sender's VersionWord.
	Version uint32
	// Type is one of the Message constants.
	Type uint32
	// SizeBytes is the size of the whole message.
	SizeBytes uint32
}

// Message types.
const (
	// MessageHelloRequest: HelloRequest, client to broker.
	MessageHelloRequest = 1
	// MessageHelloReply: HelloReply, broker to client.
	MessageHelloReply = 2
	// MessageSegmentRequest: SegmentRequest, client to broker.
	MessageSegmentRequest = 3
	// MessageSegmentReply: SegmentReply, broker to client.
	MessageSegmentReply = 4
	// MessageErrorReply: ErrorReply, broker to client.
	MessageErrorReply = 5
	// MessageTakeoverRequest: TakeoverRequest, a starting broker to the running one.
	MessageTakeoverRequest = 6
	// MessageTakeoverReply: TakeoverReply.
	MessageTakeoverReply = 7
	// MessageDeviceRequest: DeviceRequest, client to broker.
	MessageDeviceRequest = 8
	// MessageDeviceReply: DeviceReply, broker to client.
	MessageDeviceReply = 9
)

// HelloRequest asks for a channel.
type HelloRequest struct {
	_ structs.HostLayout

	// Header has type MessageHelloRequest.
	Header MessageHeader
	// Features are the feature bits that the client knows.
	Features uint64
	// Incarnation is 0, or the incarnation to take up again after a broker restart.
	Incarnation uint64
	// Generation is 0, or the generation that Incarnation belongs to.
	Generation uint64
	// Flags are Attach bits.
	Flags uint32
	// Language is one of the Language constants; for display.
	Language uint32
	// Pid is the process id in the client's own namespace; for display only (rule I1).
	Pid uint32
	// SqEntries asks for a submission ring size, a power of two; 0 for the default.
	SqEntries uint32
	// CqEntries asks for a completion ring size, a power of two; 0 for the default.
	CqEntries uint32
	// PinCount asks for a number of pin slots; 0 for the default.
	PinCount uint32
	// ArgumentBytes asks for an argument area size; 0 for the default.
	ArgumentBytes uint32
	// ResultBytes asks for a result area size; 0 for the default.
	ResultBytes uint32
	// Name is the client's name for people, UTF-8, zero-padded.
	Name [64]byte
	// Reserved is 0.
	Reserved [120]byte
}

// Attach flags, in HelloRequest.Flags.
const (
	// AttachGuard: lease whole pages and make them read-only at unmap (rule M1).
	AttachGuard = 1 << 0
	// AttachReadOnly: the client will not write; it gets no staging.
	AttachReadOnly = 1 << 1
)

// Languages, in HelloRequest.Language.
const (
	// LanguageUnknown: not said.
	LanguageUnknown = 0
	// LanguageGo: the Go client.
	LanguageGo = 1
	// LanguageC: the C client.
	LanguageC = 2
	// LanguagePython: the Python client.
	LanguagePython = 3
)

// HelloReply grants a channel. Three descriptors come with it, in this order:
// the channel (read-write, its flock LOCK_SH is the client's proof of life, rule
// I3), the directory (read-only), the doorbell (read-write).
type HelloReply struct {
	_ structs.HostLayout

	// Header has type MessageHelloReply.
	Header MessageHeader
	// Features are the feature bits that both sides have.
	Features uint64
	// Incarnation is the client's new random id.
	Incarnation uint64
	// Generation is the stage's generation.
	Generation uint64
	// BrokerIncarnation is this life of the broker.
	BrokerIncarnation uint64
	// ChannelBytes is the size of the channel object.
	ChannelBytes uint64
	// DirectoryBytes is the size of the directory object.
	DirectoryBytes uint64
	// DoorbellBytes is the size of the doorbell object.
	DoorbellBytes uint64
	// RingGeneration grows when rings start anew after a broker restart (rule B1).
	RingGeneration uint64
	// Reattached is 1 when the old incarnation was taken up again.
	Reattached uint32
	// DeviceCount is the number of devices that the broker serves.
	DeviceCount uint32
	// Reserved is 0.
	Reserved [168]byte
}

// SegmentRequest asks for a segment by id.
type SegmentRequest struct {
	_ structs.HostLayout

	// Header has type MessageSegmentRequest.
	Header MessageHeader
	// Segment is the id.
	Segment uint64
	// Reserved is 0.
	Reserved uint64
}

// SegmentReply carries one descriptor when Status is OK: read-write for the
// segment's own client or for who claimed a group in it, else read-only.
type SegmentReply struct {
	_ structs.HostLayout

	// Header has type MessageSegmentReply.
	Header MessageHeader
	// Segment is the id asked for.
	Segment uint64
	// SizeBytes is the size of the object.
	SizeBytes uint64
	// OwnerIncarnation is the client that may write it, 0 for the broker.
	OwnerIncarnation uint64
	// Status is a Status.
	Status uint32
	// Sort is as in SegmentEntry. A device arena comes without a descriptor and with NOT_SUPPORTED: it is asked for by DeviceRequest.
	Sort uint32
	// Writable is 1 when the descriptor is read-write.
	Writable uint32
	// Reserved is 0.
	Reserved uint32
}

// ErrorReply refuses a request, or says why the session ends.
type ErrorReply struct {
	_ structs.HostLayout

	// Header has type MessageErrorReply.
	Header MessageHeader
	// Status is a Status.
	Status uint32
	// BrokerVersion is the broker's VersionWord.
	BrokerVersion uint32
	// Text is for people, UTF-8, zero-padded.
	Text [488]byte
}

// TakeoverRequest asks the running broker to exit and to remove nothing.
type TakeoverRequest struct {
	_ structs.HostLayout

	// Header has type MessageTakeoverRequest.
	Header MessageHeader
	// Generation is the generation that will be recovered, 0 for whatever runs.
	Generation uint64
	// Reserved is 0.
	Reserved uint64
}

// TakeoverReply is the last message of the broker that leaves. Once it is sent the broker
// leaves; one that cannot send it stays.
type TakeoverReply struct {
	_ structs.HostLayout

	// Header has type MessageTakeoverReply.
	Header MessageHeader
	// Generation is what it leaves behind.
	Generation uint64
	// Status is a Status.
	Status uint32
	// Reserved is 0.
	Reserved uint32
}

// DeviceRequest asks which device an index stands for, or for the IPC handle of an arena
// or an event. Handles are bearer tokens and travel over this socket only (rule C2).
type DeviceRequest struct {
	_ structs.HostLayout

	// Header has type MessageDeviceRequest.
	Header MessageHeader
	// Sort is DeviceArena, DeviceEvent or DeviceInfo.
	Sort uint32
	// Index is the event's index, or the broker's index of the device; 0 for an arena.
	Index uint32
	// Segment is the arena's segment id; else 0.
	Segment uint64
}

// Sorts of device objects, in DeviceRequest.Sort.
const (
	// DeviceArena: memory.
	DeviceArena = 1
	// DeviceEvent: an interprocess event.
	DeviceEvent = 2
	// DeviceInfo: a device itself; the reply has no handle. Of a device that has the number and is not served now the
	// status is NOT_FOUND and uuid names it: others may follow. Behind the last one uuid is zero.
	DeviceInfo = 3
)

// DeviceReply carries an IPC handle.
type DeviceReply struct {
	_ structs.HostLayout

	// Header has type MessageDeviceReply.
	Header MessageHeader
	// Status is a Status.
	Status uint32
	// Sort echoes the request.
	Sort uint32
	// Index echoes the request.
	Index uint32
	// DeviceID is the broker's index of the device; match by Uuid.
	DeviceID uint32
	// ArenaGeneration is the life of the broker that made arena or event (rule B3).
	ArenaGeneration uint64
	// SizeBytes is the size of the arena, or of the device's memory.
	SizeBytes uint64
	// Uuid is the device's UUID.
	Uuid [16]byte
	// Handle is the driver's 64-byte IPC handle.
	Handle [64]byte
}
