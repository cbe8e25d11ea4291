package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"callboard/integration/harness"
)

// supervisor runs scenarios and keeps driver processes from one to the next.
type supervisor struct {
	argv    map[string][]string
	broken  map[string]string
	start   func(args ...string) *harness.Broker
	shared  *harness.Broker
	running map[string]*driver // by language and role
	serial  int
}

// eventually is how long "~>" waits. "Within a second" of a case is meant for an idle machine; a busy one gets more.
const eventually = 20 * time.Second

// raceDelay is how long roles have until they race: for a query each, and for their lines to arrive.
const raceDelay = 300 * time.Millisecond

// absentError says that a language's client has no such call.
type absentError struct{ reason string }

func (e absentError) Error() string { return e.reason }

func (s *supervisor) driver(language, role string) (*driver, error) {
	key := language + " " + role
	if d := s.running[key]; d != nil {
		return d, nil
	}
	d, err := startDriver(language, s.argv[language])
	if err == nil {
		s.running[key] = d
	}
	return d, err
}

func (s *supervisor) forget(language, role string) { delete(s.running, language+" "+role) }

func (s *supervisor) stop(t *testing.T) {
	for _, d := range s.running {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	}
}

// run plays a scenario; its roles have these languages, in order of appearance and over again. It returns how many
// steps asserted something.
func (s *supervisor) run(scenario *Scenario, languages []string) (assertions int, err error) {
	s.serial++
	n := &namespace{prefix: fmt.Sprintf("s%d", s.serial), kept: map[string]string{}}
	broker := s.shared
	if scenario.Fresh {
		n.prefix, broker = "", s.start(append([]string{"--log-level", "warn"}, scenario.FreshArgs...)...)
		defer broker.Stop()
		defer signalBroker(broker, "thaw")
	}
	connect := fmt.Sprintf("connect dir=%s stage=%s", broker.RuntimeDir, broker.Stage)
	language := map[string]string{}
	for i, role := range scenario.Roles() {
		language[role] = languages[i%len(languages)]
		d, err := s.driver(language[role], role)
		if err != nil {
			return 0, err
		}
		for _, line := range []string{"reset", connect} {
			if a, err := d.ask(line); err != nil || !a.ok {
				s.forget(language[role], role)
				return 0, fmt.Errorf("%s: %s (%v)", line, a.raw, err)
			}
		}
	}
	defer func() { // nobody stays attached to a broker that ends
		for role, l := range language {
			if d := s.running[l+" "+role]; d != nil {
				_ = d.command.Process.Signal(syscall.SIGCONT) // a scenario that failed may have left it asleep
				if _, end := d.ask("reset"); end != nil {
					s.forget(l, role)
				}
			}
		}
	}()
	n.kept["clock"] = strconv.FormatInt(time.Now().Add(raceDelay).UnixMilli(), 10)
	for _, step := range scenario.Steps {
		if err := s.step(n, broker, language[step.Role], &step); err != nil {
			return assertions, fmt.Errorf("%s: %s: %w", step.Where, step.Text, err)
		}
		if len(step.Expect) > 0 {
			assertions++
		}
	}
	return assertions, nil
}

func (s *supervisor) step(n *namespace, broker *harness.Broker, language string, step *Step) error {
	d, err := s.driver(language, step.Role)
	if err != nil {
		return err
	}
	switch step.Words[0].text {
	case "kill":
		d.kill()
		s.forget(language, step.Role)
		return nil
	case "freeze", "thaw": // of the broker, whoever says it
		return signalBroker(broker, step.Words[0].text)
	case "crash":
		broker.Kill9()
		return nil
	case "restart":
		var arguments []string
		for _, w := range step.Words[1:] {
			arguments = append(arguments, w.text)
		}
		broker.Restart(arguments...)
		return nil
	case "sleep":
		return d.command.Process.Signal(syscall.SIGSTOP)
	case "wake":
		return d.command.Process.Signal(syscall.SIGCONT)
	case "silent":
		if text := d.errors.String(); text != "" {
			return fmt.Errorf("driver %s wrote to standard error:\n%s", language, text)
		}
		return nil
	case "connect": // a process may leave and join again
		if len(step.Words) > 1 && strings.HasPrefix(step.Words[1].text, "dir=") {
			break
		}
		again := *step
		again.Words = append([]word{{text: "connect"}, {text: "dir=" + broker.RuntimeDir}, {text: "stage=" + broker.Stage}}, step.Words[1:]...)
		step = &again
	}
	ask := d.ask
	words := step.Words
	switch words[0].text {
	case "start":
		words = words[1:]
		ask = func(line string) (answer, error) { return answer{ok: true}, d.tell(line) }
	case "finish":
		ask = func(string) (answer, error) { return d.hear() }
	}
	line, err := n.compose(words)
	if err != nil {
		return err
	}
	for end := time.Now().Add(eventually); ; time.Sleep(5 * time.Millisecond) {
		a, err := ask(line)
		if err != nil {
			s.forget(language, step.Role)
			if len(step.Expect) == 1 && step.Expect[0].text == "dies" {
				return nil
			}
			return err
		}
		if a.absent != "" {
			return absentError{a.absent}
		}
		if err = n.check(&a, step.Expect); err == nil {
			return nil
		}
		if !step.Eventually || time.Now().After(end) {
			var later laterError
			if errors.As(err, &later) {
				return laterError{strings.TrimSpace(n.plain(later.text))}
			}
			return fmt.Errorf("%w\n    asked: %s\n    said:  %s", err, shortLine(line), a.short())
		}
	}
}

// signalBroker stops all of the broker's threads and returns when they stand, or lets them go on.
func signalBroker(broker *harness.Broker, what string) error {
	signal := syscall.SIGSTOP
	if what == "thaw" {
		signal = syscall.SIGCONT
	}
	if err := syscall.Kill(broker.PID(), signal); err != nil || what == "thaw" {
		return err
	}
	for end := time.Now().Add(eventually); ; time.Sleep(time.Millisecond) {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", broker.PID()))
		if err != nil {
			return err
		}
		running := 0
		for _, path := range stats {
			raw, _ := os.ReadFile(path)
			if _, rest, _ := strings.Cut(string(raw), ") "); !strings.HasPrefix(rest, "T") {
				running++
			}
		}
		if running == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d threads of the broker do not stop", running)
		}
	}
}

func shortLine(line string) string {
	if len(line) > 300 {
		return line[:300] + "…"
	}
	return line
}
