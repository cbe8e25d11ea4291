package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// paper is a driver of devices that exist as answers alone.
type paper struct {
	Driver
	devices []paperDevice
}

type paperDevice struct {
	name       string
	attributes map[Attribute]int
	err        error // of every question
}

func (p *paper) DeviceCount() (int, error)             { return len(p.devices), nil }
func (p *paper) DeviceGet(ordinal int) (Device, error) { return Device(ordinal), nil }
func (p *paper) DeviceName(d Device) (string, error)   { return p.devices[d].name, p.devices[d].err }
func (p *paper) DeviceUUID(d Device) (UUID, error)     { return UUID{byte(d) + 1}, nil }
func (p *paper) DeviceMemory(Device) (uint64, error)   { return 1 << 30, nil }
func (p *paper) DeviceAttribute(d Device, what Attribute) (int, error) {
	return p.devices[d].attributes[what], p.devices[d].err
}

func good() map[Attribute]int {
	return map[Attribute]int{AttributeUnifiedAddressing: 1, AttributeIPCEvents: 1}
}

// One device that works is enough, and each says for itself.
func TestProbeTakesTheBestOfTheDevices(t *testing.T) {
	tegra := good()
	tegra[AttributeIntegrated] = 1
	lost := &Error{Code: ErrUnavailable, Function: "cuDeviceGetName"}
	v, devices := ask(&paper{devices: []paperDevice{{"Orin", tegra, nil}, {"", nil, lost}, {"NVIDIA A100 MIG 1g.5gb", good(), nil}, {"NVIDIA H100", good(), nil}}}, false)
	require.Equal(t, Yes, v.Answer)
	require.Len(t, devices, 4)
	require.Equal(t, ReasonTegra, devices[0].Reason)
	require.Equal(t, No, devices[1].Answer)
	require.Equal(t, ReasonExclusive, devices[1].Reason)
	require.Equal(t, Unknown, devices[2].Answer)
	require.Equal(t, ReasonMIG, devices[2].Reason)
	require.Equal(t, Yes, devices[3].Answer)
	require.Equal(t, 3, devices[3].Ordinal)

	v, _ = ask(&paper{devices: []paperDevice{{"Orin", tegra, nil}, {"NVIDIA A100 MIG 1g.5gb", good(), nil}}}, false)
	require.Equal(t, Unknown, v.Answer)
	require.Equal(t, ReasonMIG, v.Reason)
	v, _ = ask(&paper{devices: []paperDevice{{"Orin", tegra, nil}}}, true)
	require.Equal(t, ReasonTegra, v.Reason, "what is certain comes before what is not")
	require.Equal(t, `no: integrated device (attribute 18 of Orin is 1): `+v.Advice, v.String())
	v, devices = ask(&paper{}, false)
	require.Equal(t, ReasonNoDevice, v.Reason)
	require.Empty(t, devices)
}
