package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
)

// logging is the flags that say what is logged, and how.
type logging struct{ *logsapi.LoggingConfiguration }

func (l *logging) add(f *pflag.FlagSet) {
	if err := logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		panic(err) // gates of the version of the library that we are built with
	}
	l.LoggingConfiguration = logsapi.NewLoggingConfiguration()
	logsapi.AddFlags(l.LoggingConfiguration, f)
	f.Lookup("logging-format").Usage = "How lines are written: text or json."
	f.Lookup("v").Usage = "How much is logged. Text at level 0 is warnings and errors alone."
	f.Lookup("vmodule").Usage = "How much files log that differ: their name without .go, or a pattern, =, and a level, separated by commas. For text alone."
	f.Lookup("log-flush-frequency").Usage = "How often what is buffered is written. Only --log-text-info-buffer-size and --log-json-info-buffer-size have anything buffered."
	f.Lookup("log-text-split-stream").Usage = "Errors go to standard error and the rest to standard output. Needs --feature-gates=LoggingAlphaOptions=true, as all --log-text-* and --log-json-* do."
}

// plain reports whether the log is for people. Programs are told everything in its form.
func (l *logging) plain() bool { return l.Format == logsapi.DefaultLogFormat }

// apply logs as the flags say from now on.
func (l *logging) apply() error {
	if errs := logsapi.Validate(l.LoggingConfiguration, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		return fmt.Errorf("%w; correct --logging-format and the flags --log-*", errs.ToAggregate())
	}
	// Kubernetes has gRPC log every attempt to connect, as a warning.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	if l.Format != logsapi.DefaultLogFormat || l.Options.Text.SplitStream {
		return logsapi.ValidateAndApply(l.LoggingConfiguration, utilfeature.DefaultFeatureGate)
	}
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	klog.SetOutput(verbose{all: len(l.VModule) > 0})
	for name, value := range map[string]string{
		"logtostderr": "false", "stderrthreshold": "WARNING",
		"v": logsapi.VerbosityLevelPflag(&l.Verbosity).String(), "vmodule": logsapi.VModuleConfigurationPflag(&l.VModule).String(),
	} {
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
	}
	return nil
}

// verbose drops the log at its lowest level, unless some files log more.
type verbose struct{ all bool }

func (v verbose) Write(b []byte) (int, error) {
	if !v.all && !klog.V(1).Enabled() || len(b) == 0 || b[0] != 'I' {
		return len(b), nil // warnings are written to standard error already
	}
	return os.Stderr.Write(b)
}
