package main

// hoard makes n queries of the paths; discard releases them all at once.
func (d *driver) hoard(c command) (*answer, error) {
	for range c.number("n") {
		ctx, cancel := limit()
		q, err := d.stage.QueryFromPathList(ctx, c.args)
		cancel()
		if err != nil {
			return nil, err
		}
		d.hoarded = append(d.hoarded, q)
	}
	return &answer{}, nil
}

func (d *driver) discard(command) (*answer, error) {
	released := len(d.hoarded)
	for _, q := range d.hoarded {
		q.Release()
	}
	d.hoarded = nil
	return (&answer{}).add("released", released), nil
}
