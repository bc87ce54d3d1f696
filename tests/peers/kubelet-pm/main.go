// Command kubelet-pm runs the kubelet's own plugin manager (pluginmanager.NewPluginManager) on one directory, with
// handlers that do what a script says, and prints what it does as lines of JSON.
//
//	kubelet-pm [flags] DIRECTORY
//
//	--types A,B       the plugin types that have a handler; CSIPlugin,DevicePlugin,DRAPlugin by default
//	--script RULE     how a handler behaves (see below); may be given many times
//	--verbosity N     the level up to which the manager's own log is printed; 0 by default: errors, and that it started.
//	                  At 2 the log has each change of the manager's desired world, and each operation that it starts
//	--quiet           print nothing but "ready", the ends of deregisters, the answers to "state", and the last state
//
// A rule is a JSON object: {"call": "register", "name": "a.example.com", "error": "no room", "seconds": 0.5, "times": 2}.
// The next two calls of RegisterPlugin for that name take half a second and fail. The call is validate, register or
// deregister. Without a name the rule is for all names, without times for all calls, without an error the call succeeds
// (a deregister always does). For a call that hangs, let it take very many seconds. The first rule counts that fits.
//
// If standard input is a pipe, each line of it is one of these, and its end ends the program:
//
//	{...}    a rule, which is added behind the others
//	calm     forget all rules
//	state    print a line with the state
//
// SIGTERM and SIGINT end the program, too. Its exit code is 0 then, 1 if the manager could not start or a line of standard
// input is wrong, and 2 for wrong arguments. Like the kubelet, it ends without deregistering anything.
//
// Each line of standard output has "time", the seconds of CLOCK_MONOTONIC (Python's time.monotonic), and one of:
//
//	"ready": DIRECTORY          the manager watches the directory and has listed what is in it
//	"call": CALL, "type": …, "name": …, "endpoint": …, "versions": […]
//	                            a handler is called; a deregister has no versions. The endpoint is the socket's path if
//	                            the plugin gave none, and the only place where the handler's API shows the path
//	"returned": CALL, "type": …, "name": …, "endpoint": …, "error": …
//	                            the call has ended; an empty error is success
//	"state": {"desired": […], "actual": […], "calls": {CALL: number}}
//	                            the paths that the manager wants to register and those that it has registered or is
//	                            registering, by its own metric, and the calls so far; the last line of all is one, too
//	"log": {"level": …, "msg": …, …}
//	                            a line of the manager's own log
//
// Lines are written in the order in which things happened, as soon as standard output takes them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

// What the manager logs once its watcher has listed the directory.
const started = `"msg":"Starting Kubelet Plugin Manager"`

type options struct {
	directory string
	types     []string
	verbosity int
	quiet     bool
	script    script
}

func main() {
	given, err := parsed(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubelet-pm:", err)
		os.Exit(2)
	}
	lines := newOutput(os.Stdout, given.quiet)
	err = run(given, lines)
	lines.always("state", state(lines.counts()))
	lines.flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubelet-pm:", err)
		os.Exit(1)
	}
}

func parsed(arguments []string) (*options, error) {
	given := &options{}
	flags := flag.NewFlagSet("kubelet-pm", flag.ContinueOnError)
	types := flags.String("types", "CSIPlugin,DevicePlugin,DRAPlugin", "the plugin types that have a handler")
	flags.Func("script", "a rule of how a handler behaves, as JSON", given.script.add)
	flags.IntVar(&given.verbosity, "verbosity", 0, "the level up to which the manager's own log is printed")
	flags.BoolVar(&given.quiet, "quiet", false, "print only when it is ready, the ends of deregisters, and states")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	if flags.NArg() != 1 {
		return nil, errors.New("expected one directory")
	}
	given.directory = flags.Arg(0)
	given.types = strings.Split(*types, ",")
	return given, nil
}

// run returns when a signal or the end of standard input asks for the end, or with the error that ended it.
func run(given *options, lines *output) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	input, ended := make(chan error, 1), make(chan error, 1)
	if readable(os.Stdin) {
		go func() { input <- follow(os.Stdin, &given.script, lines) }()
	}
	go func() { ended <- manage(given, lines) }()
	select {
	case <-signals:
		return nil
	case err := <-input:
		return err
	case err := <-ended:
		return err
	}
}

// manage runs the plugin manager; it returns only if that could not start.
func manage(given *options, lines *output) error {
	logger := funcr.NewJSON(func(line string) {
		if strings.Contains(line, started) {
			lines.always("ready", given.directory)
		}
		lines.say("log", json.RawMessage(line))
	}, funcr.Options{Verbosity: given.verbosity})
	klog.SetLogger(logger)
	manager := pluginmanager.NewPluginManager(given.directory, &record.FakeRecorder{})
	for _, pluginType := range given.types {
		manager.AddHandler(pluginType, &handler{pluginType, &given.script, lines})
	}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	manager.Run(klog.NewContext(context.Background(), logger), ready, make(chan struct{}))
	return errors.New("the plugin manager could not start")
}

func readable(file *os.File) bool {
	about, err := file.Stat()
	return err == nil && about.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0
}

// follow does what the lines of standard input ask for, until its end.
func follow(input io.Reader, script *script, lines *output) error {
	scanner := bufio.NewScanner(input)
	for scanner.Scan() {
		switch line := strings.TrimSpace(scanner.Text()); line {
		case "":
		case "calm":
			script.clear()
		case "state":
			lines.always("state", state(lines.counts()))
		default:
			if err := script.add(line); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
		}
	}
	return scanner.Err()
}
