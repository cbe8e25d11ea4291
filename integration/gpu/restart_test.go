package gpu

import "testing"

// What a program has queued when the broker goes may still write: the memory stays open under it (rules B3, B4).
func TestQueuedWorkOutlivesTheBroker(t *testing.T) {
	needsEmulation(t)
	for _, how := range []string{"refused", "in flight"} {
		t.Run(how, func(t *testing.T) {
			m := start(t)
			h := newHold(t)
			p := m.client("producer", h.setting())
			p.do(order{Do: "map", Name: "x", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1})
			h.begin()
			p.do(order{Do: "fill", Name: "x", Value: 7})
			if how == "in flight" {
				p.do(order{Do: "commit", Name: "x", Sync: "stream", Async: true})
			}
			m.Kill9()
			m.Restart()
			if how == "in flight" {
				p.refused(order{Do: "wait", Name: "x"}, "BROKER_RESTARTED")
			} else {
				p.refused(order{Do: "commit", Name: "x", Sync: "stream"}, "BROKER_RESTARTED")
			}
			p.do(order{Do: "cycle", Name: "host", Prims: prims(2), Bytes: rowBytes, Device: "cpu", Ordinal: 1, Value: 1, Count: 1}) // and closes what nothing uses
			h.end()
			p.do(order{Do: "cycle", Name: "x", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 2, Value: 3, Sync: "stream", Count: 1})
		})
	}
}
