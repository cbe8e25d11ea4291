package integration

import (
	"context"
	"errors"

	callboard "callboard/clients/go"
)

func init() { roles["publishing-producer"] = publishingProducer }

// publishingProducer publishes 1, 2, 3 … as one value, each when the one before is known
// to be sealed.
func publishingProducer(p *part) error {
	const name = "counted/value"
	ctx := context.Background()
	s, err := callboard.Dial(ctx, callboard.Options{Name: "publisher"})
	if err != nil {
		return err
	}
	defer s.Close()
	latest := func() (uint64, error) {
		g, err := s.Latest(ctx, name)
		if errors.Is(err, callboard.ErrNotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		defer g.Release()
		values, err := callboard.Values[uint64](g)
		if err != nil {
			return 0, err
		}
		return values[0], nil
	}
	var report producerReport
	for count := uint64(1); ; count++ {
		_, err := s.Publish(ctx, name, count)
		there, problem := latest()
		if problem != nil {
			note(&report.Refused, &report.First, "reading %d: %v", count, problem)
		}
		var why *callboard.Error
		switch {
		case errors.Is(err, callboard.ErrSessionEnded):
			return err
		case errors.Is(err, callboard.ErrBrokerRestarted) && errors.As(err, &why):
			report.Restarted++
			if why.SealedMaybe {
				report.Maybe++
			} else if there >= count {
				note(&report.Lied, &report.First, "%d was sealed: %v", count, err)
			}
			if there < count {
				count--
			}
		case err != nil:
			note(&report.Refused, &report.First, "publishing %d: %v", count, err)
		case there != count:
			note(&report.Lied, &report.First, "%d was sealed, and %d is there", count, there)
		default:
			report.Commits++
		}
		if count == 1 {
			p.say("ready")
		}
		select {
		case <-p.orders:
			p.say(report)
			return nil
		default:
		}
	}
}
