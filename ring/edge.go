package ring

// edge names one direction of a hand-over through a shared word.
type edge int

const (
	edgeSqTail edge = iota // Client.Submit to Server.Drain
	edgeSqHead             // Server.Drain to Client.Submit
	edgeCqTail             // Server.Flush to Client.Poll
	edgeCqHead             // Client.Poll to Server.Drain
	edgePin                // PinTable to Pins.Scan
	edgeBell               // Bell.Ring to Bell.Arm and Bell.Wait
	edgeCount
)
