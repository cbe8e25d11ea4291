package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"callboard/shm"
)

const (
	containerShm  = 64 << 20 // what Docker, Podman and Kubernetes give unless told otherwise
	smallFree     = 16 << 20 // a broker with one client takes some 4 MiB
	fewFiles      = 1024     // a process maps a descriptor's worth of segments at a time; brokers keep one for each
	tooFewFiles   = 64
	rlimitMemlock = 8 // not in package syscall: include/uapi/asm-generic/resource.h
)

// machine looks at what is the same for every stage.
func (d *diagnosis) machine() {
	if n := runtime.NumCPU(); n < 2 {
		d.trouble(stateWarn, "processors", "give the process a second one: broker and clients otherwise wait for each other's turn", "1 to run on")
	} else {
		d.ok("processors", "%d to run on", n)
	}
	broken := false
	for _, f := range shm.Features(d.shmDir) {
		switch {
		case broken: // what is wrong with the place is said once
		case f.Err == nil:
			d.ok("kernel", "%s: there (Linux %s)", f.Name, shm.KernelRelease())
		case f.Needed:
			broken = true
			d.trouble(stateFail, "kernel", "choose a tmpfs for --shm-dir that this user may write to", "%s on %s: %v; without it %s", f.Name, d.shmDir, f.Err, f.Without)
		default: // nothing is lost, so nobody need do anything
			d.ok("kernel", "%s: not there (%v): %s", f.Name, f.Err, f.Without)
		}
	}
	var files, locked syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil {
		const do = "raise it: `ulimit -n 4096`, LimitNOFILE= of a service, --ulimit nofile= of a container"
		switch {
		case files.Cur < tooFewFiles:
			d.trouble(stateFail, "open files", do, "a process may have %d (ulimit -n)", files.Cur)
		case files.Cur < fewFiles:
			d.trouble(stateWarn, "open files", do, "a process may have %d (ulimit -n)", files.Cur)
		default:
			d.ok("open files", "a process may have %d (ulimit -n)", files.Cur)
		}
	}
	if err := syscall.Getrlimit(rlimitMemlock, &locked); err == nil {
		size := "any size"
		if locked.Cur < 1<<62 {
			size = formatSize(locked.Cur)
		}
		d.ok("locked memory", "%s (ulimit -l); nothing of Callboard's is locked, so any limit will do", size)
	}
	if os.Geteuid() >= firstUserID {
		if file := removeIPCFile(logindFiles("/etc/systemd", "/run/systemd", "/usr/lib/systemd")); file != "" {
			d.trouble(stateWarn, "RemoveIPC", "run the broker as a system service, enable lingering, or set RemoveIPC=no", "%s: systemd removes this user's shared memory when the last login session ends", file)
		}
	}
}

// sharedMemory looks at the file system that objects lie on, and at this user's directory there.
func (d *diagnosis) sharedMemory() {
	const larger = "in a container --shm-size=2g, or an emptyDir of medium Memory at /dev/shm; else mount -o remount,size=…; or serve --shm-dir"
	total, free, err := shm.FileSystem(d.shmDir)
	if err != nil {
		d.trouble(stateFail, "shared memory", "mount a tmpfs there, or name another place with serve --shm-dir", "%v", err)
		return
	}
	kind, _ := shm.FileSystemType(d.shmDir)
	switch size := fmt.Sprintf("%s is a %s of %s, %s free", d.shmDir, kind, formatSize(total), formatSize(free)); {
	case free < smallFree:
		d.trouble(stateFail, "shared memory", "`callboard gc` removes what dead brokers left; "+larger, "%s", size)
	case kind != "tmpfs":
		d.trouble(stateWarn, "shared memory", "put it on a tmpfs: every change is written to a disk here", "%s", size)
	case total <= containerShm:
		d.trouble(stateWarn, "shared memory", larger, "%s: the default of containers, soon full", size)
	case free < total/10:
		d.trouble(stateWarn, "shared memory", "`callboard gc --dry-run` shows whether dead brokers hold it", "%s", size)
	default:
		d.ok("shared memory", "%s", size)
	}
	dir := filepath.Dir(shm.ShmDir(d.shmDir, d.stage))
	if _, err := os.Lstat(dir); os.IsNotExist(err) {
		return // no broker of this user ran here
	}
	if err := shm.VerifyDir(dir); err != nil {
		d.trouble(stateFail, "memory directory", "remove it, or give it back to this user: no broker starts while it is so", "%v", err)
	} else {
		d.ok("memory directory", "%s is this user's alone", dir)
	}
}

// container looks for signs of one, and for its limits.
func (d *diagnosis) container() {
	signs := []string{}
	for _, file := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(file); err == nil {
			signs = append(signs, file)
		}
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		signs = append(signs, "$KUBERNETES_SERVICE_HOST")
	}
	if len(signs) == 0 {
		return
	}
	d.ok("container", "this is one (%s). Clients in other containers need the runtime directory mounted, and the same user id or serve --allow-uid; no --ipc, no --pid", strings.Join(signs, ", "))
	limit, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return
	}
	most, err := strconv.ParseUint(strings.TrimSpace(string(limit)), 10, 64)
	if total, _, failed := shm.FileSystem(d.shmDir); err == nil && failed == nil && most < total {
		d.trouble(stateWarn, "memory limit", "raise the container's limit, or lower serve --memory: shared memory counts for it", "the container may use %s, %s has %s", formatSize(most), d.shmDir, formatSize(total))
	}
}

// leftBehind looks at what there is of all stages of this user.
func (d *diagnosis) leftBehind() {
	memory, err := shm.Leftovers(d.shmDir)
	places, runtimeErr := shm.RuntimeLeftovers()
	for _, err := range []error{err, runtimeErr} {
		if err != nil {
			d.trouble(stateFail, "stages", "see who owns that directory", "%v", err)
		}
	}
	for i, l := range append(memory, places...) {
		what := "memory"
		if i >= len(memory) {
			what = "runtime directory"
		}
		about := fmt.Sprintf("%s of stage %s: %s (%s)", what, l.Stage, l.Path, formatSize(l.Bytes))
		switch {
		case l.InUse == "":
			d.trouble(stateWarn, "left behind", "`callboard gc` removes it, or the next start of that stage", "%s, nobody uses it", about)
		case l.ClientHolds != "":
			do := "it goes with that process"
			if holders := processesWith(l.ClientHolds); len(holders) > 0 {
				do = fmt.Sprintf("it goes with %s; then `callboard gc`", strings.Join(holders, ", "))
			}
			d.trouble(stateWarn, "left behind", do, "%s; its broker is gone, a client still looks at it", about)
		default:
			d.ok("stages", "%s; %s", about, l.InUse)
		}
	}
}

// processesWith names the processes that have a file open or mapped, as far as this user may see them.
func processesWith(path string) (named []string) {
	links, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range links {
		if !hasFile(process, path) {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(process, "comm"))
		named = append(named, fmt.Sprintf("process %s (%s)", filepath.Base(process), strings.TrimSpace(string(name))))
	}
	return named
}

func hasFile(process, path string) bool {
	descriptors, _ := filepath.Glob(filepath.Join(process, "fd", "*"))
	for _, fd := range descriptors {
		if to, err := os.Readlink(fd); err == nil && to == path {
			return true
		}
	}
	maps, err := os.ReadFile(filepath.Join(process, "maps"))
	return err == nil && strings.Contains(string(maps), " "+path+"\n")
}
