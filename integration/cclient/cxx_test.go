package cclient

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// TestLiveCxx runs callboard.hpp as C++17, as C++20 and without exceptions, under the sanitizers.
func TestLiveCxx(t *testing.T) {
	client := build(t)
	for _, program := range []string{"live_cxx17", "live_cxx20", "live_cxx17_no_exceptions"} {
		t.Run(program, func(t *testing.T) {
			b := harness.Start(t)
			require.Equal(t, "ok\n", succeeds(t, b.Env(), filepath.Join(client, "build", program), b.Stage))
		})
	}
}

// withoutCxx are the functions of C that callboard.hpp does not call, and why.
var withoutCxx = map[string]string{
	"cbd_fill":         "a type of functions: stage::work_on takes anything that can be called",
	"cbd_log_callback": "a type of functions: log_handler takes a std::function",
}

// TestEveryFunctionHasACxxForm: what callboard.h, callboard_dlpack.h and callboard_cuda.h declare is called somewhere in the headers for
// C++, and what those offer is called in a test.
func TestEveryFunctionHasACxxForm(t *testing.T) {
	root, err := harness.Root()
	require.NoError(t, err)
	client := filepath.Join(root, "clients", "c")
	all := func(pattern ...string) (text string) {
		files, err := filepath.Glob(filepath.Join(append([]string{client}, pattern...)...))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			text += string(content)
		}
		return text
	}
	headers := all("include", "callboard", "*.hpp")
	declared := regexp.MustCompile(`\bCBD_API [^;(]*?\b(cbd_\w+)\(`).FindAllStringSubmatch(all("include", "callboard.h")+all("include", "callboard_dlpack.h")+all("include", "callboard_cuda.h"), -1)
	require.GreaterOrEqual(t, len(declared), 100)
	for _, match := range declared {
		if withoutCxx[match[1]] == "" && !regexp.MustCompile(`\b`+match[1]+`\b`).MatchString(headers) {
			t.Errorf("%s has no form in C++: add one to include/callboard/, or a reason here", match[1])
		}
	}

	// Methods and functions stand at the beginning of a line's code and have a return type of ours before them.
	tests := all("tests", "live_cxx*.cc")
	offered := regexp.MustCompile(`(?m)^(?: {4})?(?:static |inline )*(?:result<.*>|std::\S+|span<.*>|bool|void|filter &|batch &|pin|callboard::pin) (\w+)\(`).FindAllStringSubmatch(headers, -1)
	require.Greater(t, len(offered), 80)
	for _, match := range offered {
		inside := []string{"operator", "call", "detail", "with", "intern", "take", "seal", "add", "fail", "pointers", "nanoseconds", "fits", "fits_values", "describe", "check_row", "of"}
		if !slices.Contains(inside, match[1]) && !regexp.MustCompile(`\b`+match[1]+`[(<]`).MatchString(tests) {
			t.Errorf("no test in clients/c/tests/live_cxx*.cc calls %s", match[1])
		}
	}
}

// TestInstalledPackage installs the client as others would, lets a project of its own find it, by CMake in both standards
// and by pkg-config, and runs the examples that were built so: one fills points, the other reads them.
func TestInstalledPackage(t *testing.T) {
	for _, tool := range []string{"cmake", "pkg-config"} {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, tool+" is not installed")
		}
	}
	root, err := harness.Root()
	require.NoError(t, err)
	dir, prefix := t.TempDir(), filepath.Join(t.TempDir(), "prefix")
	examples := filepath.Join(root, "examples", "cpp")
	succeeds(t, nil, "cmake", "-S", filepath.Join(root, "clients", "c"), "-B", dir, "-DCMAKE_BUILD_TYPE=Debug") // compiles faster
	succeeds(t, nil, "cmake", "--build", dir, "--parallel", "2")
	succeeds(t, nil, "cmake", "--install", dir, "--prefix", prefix)

	builds := map[string]string{} // how: where the programs are
	for _, standard := range []string{"17", "20"} {
		build := t.TempDir()
		succeeds(t, nil, "cmake", "-S", examples, "-B", build, "-DCMAKE_PREFIX_PATH="+prefix, "-DCMAKE_CXX_STANDARD="+standard)
		succeeds(t, nil, "cmake", "--build", build, "--parallel", "2")
		builds["C++"+standard] = build
	}
	found, err := filepath.Glob(filepath.Join(prefix, "lib*", "pkgconfig"))
	require.NoError(t, err)
	if len(found) == 0 { // of Debian's multiarch directories
		found, err = filepath.Glob(filepath.Join(prefix, "lib", "*", "pkgconfig"))
		require.NoError(t, err)
	}
	require.Len(t, found, 1)
	flags := strings.Fields(succeeds(t, []string{"PKG_CONFIG_PATH=" + found[0]}, "pkg-config", "--cflags", "--libs", "callboard"))
	build := t.TempDir()
	for _, program := range []string{"points", "reader"} {
		args := []string{"-std=c++17", filepath.Join(examples, program+".cpp"), "-Wl,-rpath," + filepath.Dir(found[0]), "-o", filepath.Join(build, program)}
		succeeds(t, nil, "c++", append(args, flags...)...)
	}
	builds["pkg-config"] = build

	for how, build := range builds {
		t.Run(how, func(t *testing.T) {
			b := harness.Start(t)
			require.Contains(t, succeeds(t, b.Env(), filepath.Join(build, "points"), "3", b.Stage), "state 3 is ordinal 3, epoch ")
			out := succeeds(t, b.Env(), filepath.Join(build, "reader"), "1", b.Stage)
			require.Regexp(t, `^epoch \d+ /World/Cloud/Point999: -0\.648 -0\.761 3\.000\nepoch \d+ /World/Cloud/Point0: 0\.955 0\.296 3\.000\n$`, out)
		})
	}
}

// succeeds runs a program to its end and returns what it printed.
func succeeds(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	command := exec.Command(name, args...)
	command.Env = append(os.Environ(), env...)
	var complaints strings.Builder
	command.Stderr = &complaints
	out, err := command.Output()
	require.NoError(t, err, "%s %s\nprinted:\n%s\n%s", name, strings.Join(args, " "), out, &complaints)
	return string(out)
}

// skip is the only way to leave a test out.
func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
		t.Fatalf("may not be skipped here: %s", reason)
	}
	t.Skip(reason)
}
