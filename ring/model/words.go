package model

import "fmt"

// The sentences for a store that reaches memory, by the word it goes to.
var drains = func() (d [memoryWords]string) {
	d[bell] = "doorbell of the broker"
	d[sleeping] = "sleeping of the broker"
	for c := range maxClients {
		d[submitted+c] = fmt.Sprintf("submission tail of client %d", c)
		d[completed+c] = fmt.Sprintf("completion tail of client %d", c)
		d[clientBell+c] = fmt.Sprintf("doorbell of client %d", c)
		d[clientSleep+c] = fmt.Sprintf("sleeping of client %d", c)
	}
	for i, name := range d {
		d[i] = "takes the oldest store to " + name + ": %d"
	}
	return d
}()
