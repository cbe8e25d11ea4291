package protocol

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const regenerate = "run go run ./protocol/abigen and review the difference"

// TestGoldenListingIsTheRunningBuild: whoever moves a field or renumbers a constant sees
// it in a file under review, and a stale listing fails (P1).
func TestGoldenListingIsTheRunningBuild(t *testing.T) {
	var now strings.Builder
	for _, value := range listedStructs {
		s := reflect.TypeOf(value)
		fmt.Fprintf(&now, "size %s %d\n", s.Name(), s.Size())
		for _, f := range wireFields(s) {
			fmt.Fprintf(&now, "field %s.%s %d %d\n", s.Name(), f.Name, f.Offset, f.Type.Size())
		}
	}
	for _, c := range listedConstants {
		fmt.Fprintf(&now, "const %s %d\n", c.name, c.value)
	}
	text, err := os.ReadFile("testdata/golden.txt")
	require.NoError(t, err)
	_, golden, _ := strings.Cut(string(text), "\n")
	require.Equal(t, golden, now.String(), regenerate)
}

// TestNoPaddingIsLeftToTheCompiler: P1, seen by reflection and not by the generator.
func TestNoPaddingIsLeftToTheCompiler(t *testing.T) {
	require.Greater(t, len(listedStructs), 40)
	for _, value := range listedStructs {
		s := reflect.TypeOf(value)
		end := uintptr(0)
		for _, f := range wireFields(s) {
			require.Equal(t, end, f.Offset, "%s.%s", s.Name(), f.Name)
			require.Zero(t, f.Offset%uintptr(f.Type.Align()), "%s.%s", s.Name(), f.Name)
			end = f.Offset + f.Type.Size()
		}
		require.Equal(t, end, s.Size(), "%s has padding at its end", s.Name())
	}
}

// TestHotWordsOfDifferentWritersNeverShare128Bytes: P6.
func TestHotWordsOfDifferentWritersNeverShare128Bytes(t *testing.T) {
	hot := map[string][]string{
		"ChannelControl":  {"SqTail", "SqHead", "CqTail", "CqHead", "ClientBell", "ClientSleeping", "PinHighWater"},
		"DirectoryHeader": {"Header", "Epoch", "HorizonAny", "Sleeping", "BrokerIncarnation"},
		"Doorbell":        {"Header", "Rings"},
		"AttributeEntry":  {"NameID", "Horizon"},
	}
	for _, value := range listedStructs {
		s := reflect.TypeOf(value)
		for i, name := range hot[s.Name()] {
			f, ok := s.FieldByName(name)
			require.True(t, ok, "%s.%s", s.Name(), name)
			require.Equal(t, uintptr(i*128), f.Offset, "%s.%s", s.Name(), name)
		}
		delete(hot, s.Name())
	}
	require.Empty(t, hot, "structs that are not listed")
}

// TestEveryMessageFitsTheBound: a receiver's buffer of MessageBytesMax is enough.
func TestEveryMessageFitsTheBound(t *testing.T) {
	seen := 0
	for _, value := range listedStructs {
		s := reflect.TypeOf(value)
		if f, ok := s.FieldByName("Header"); ok && f.Type == reflect.TypeFor[MessageHeader]() {
			seen++
			require.Zero(t, f.Offset, s.Name())
			require.LessOrEqual(t, s.Size(), uintptr(MessageBytesMax), s.Name())
		}
	}
	require.Equal(t, MessageDeviceReply, seen, "one struct for each message type")
}

func TestRegionsFitTheSizesThatTheyPromise(t *testing.T) {
	require.LessOrEqual(t, reflect.TypeFor[DirectoryHeader]().Size(), uintptr(DirectoryBytes))
	require.LessOrEqual(t, reflect.TypeFor[Doorbell]().Size(), uintptr(DoorbellBytes))
	require.LessOrEqual(t, reflect.TypeFor[ChannelHeader]().Size(), uintptr(ChannelControlOffset))
	require.LessOrEqual(t, ChannelControlOffset+reflect.TypeFor[ChannelControl]().Size(), uintptr(4096))
	require.Len(t, Schema{}.RowShape, RowDimensionsMax)
	require.Len(t, DirectoryHeader{}.StageName, StageNameBytesMax)
}

// TestMagicNumbersReadAsText: a hex dump of a region names it.
func TestMagicNumbersReadAsText(t *testing.T) {
	for text, magic := range map[string]uint64{
		"CBDDIREC": MagicDirectory, "CBDCHANL": MagicChannel, "CBDSEGMT": MagicSegment, "CBDDOORB": MagicDoorbell, "CBDM": MagicMessage,
	} {
		for i := range len(text) {
			require.Equal(t, text[i], byte(magic>>(8*i)), text)
		}
		require.Zero(t, magic>>(8*len(text)-1)>>1, text)
	}
}

// wireFields are the fields of s without the marker of its layout.
func wireFields(s reflect.Type) (out []reflect.StructField) {
	for i := range s.NumField() {
		if f := s.Field(i); f.Name != "_" {
			out = append(out, f)
		}
	}
	return out
}
