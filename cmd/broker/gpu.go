package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"callboard/broker"
	"callboard/cudaipc"
)

// gpuFlags are the operator's choices about device memory.
type gpuFlags struct {
	which   *string
	memory  sizeValue
	timeout *time.Duration
	events  *int
}

func (f *gpuFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.which = flags.String("gpu", "auto", "serve device memory: auto, off or required; behind a comma the devices, by number or UUID, like\nrequired,0 (default all)")
	flags.Var(&f.memory, "gpu-memory", "most bytes of each device (default what the device has)")
	f.timeout = flags.Duration("gpu-timeout", 10*time.Second, "how long a producer's work on a device may take after it handed its rows back")
	f.events = flags.Int("gpu-events", 256, "groups in device memory that may be on their way at a time, for each device")
	_ = cmd.RegisterFlagCompletionFunc("gpu", cobra.FixedCompletions([]string{"auto", "off", "required"}, cobra.ShellCompDirectiveNoFileComp))
}

var deviceUUID = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// config reads the flags.
func (f *gpuFlags) config() (config broker.GPUConfig, err error) {
	config = broker.GPUConfig{Mode: broker.GPUAuto, MemoryBytes: uint64(f.memory), Timeout: *f.timeout, Events: *f.events}
	if config.Timeout <= 0 {
		return config, usagef("--gpu-timeout is %v: expected more than 0, like 10s", config.Timeout)
	}
	if config.Events < 1 {
		return config, usagef("--gpu-events is %d: expected at least 1", config.Events)
	}
	words := strings.Split(*f.which, ",")
	switch words[0] {
	case "off":
		config.Mode = broker.GPUOff
		words = words[1:]
	case "auto", "required":
		if words[0] == "required" {
			config.Mode = broker.GPURequired
		}
		words = words[1:]
	}
	for _, word := range words {
		bare := strings.TrimPrefix(strings.TrimPrefix(strings.ToLower(word), "gpu-"), "mig-") // parts of a device have ids alike
		if uuid := "GPU-" + bare; deviceUUID.MatchString(uuid) {
			word = uuid
		} else if _, err := strconv.ParseUint(word, 10, 16); err != nil {
			return config, usagef("--gpu: %q is none of auto, off and required, no number of a device and no UUID; `nvidia-smi -L` lists both", word)
		}
		config.Devices = append(config.Devices, word)
	}
	if config.Mode == broker.GPUOff && len(config.Devices) > 0 {
		return config, usagef("--gpu %s: off takes no devices", *f.which)
	}
	config.SelfTest, err = selfTestCommand()
	return config, err
}

// selfTestName is the hidden command that a broker starts to be the other process of the self-test.
const selfTestName = "gpu-self-test"

func selfTestCommand() ([]string, error) {
	self, err := os.Executable()
	return []string{self, selfTestName}, err
}

// newSelfTest is the other process of a self-test: it opens what it is told on its standard input and answers in a line.
func newSelfTest() *cobra.Command {
	return &cobra.Command{
		Use: selfTestName, Hidden: true, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cudaipc.SelfTestChild(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
