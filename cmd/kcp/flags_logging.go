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

	"github.com/unforked/kcp/internal/observe/logs"
)

// logging holds the flags for the log.
type logging struct{ *logsapi.LoggingConfiguration }

func (l *logging) add(f *pflag.FlagSet) {
	if err := logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		panic(err) // the library defines each gate once
	}
	l.LoggingConfiguration = logsapi.NewLoggingConfiguration()
	logsapi.AddFlags(l.LoggingConfiguration, f)
	f.Lookup("logging-format").Usage = "Format of the log: text or json."
	f.Lookup("v").Usage = "Level of the log. At level 0, the text format has only warnings and errors."
	f.Lookup("vmodule").Usage = "Levels of single files, as FILE=LEVEL separated by commas; FILE is a name without .go, or a pattern. Only for the text format."
	f.Lookup("log-flush-frequency").Usage = "Interval between writes of buffered lines. Without --log-text-info-buffer-size or --log-json-info-buffer-size nothing is buffered."
	f.Lookup("log-text-split-stream").Usage = "Write errors to standard error and other lines to standard output. Needs --feature-gates=LoggingAlphaOptions=true, as all --log-text-* and --log-json-* do."
}

// plain reports whether the format is text for people.
func (l *logging) plain() bool { return l.Format == logsapi.DefaultLogFormat }

// apply configures the log. The function that it returns writes the last lines. The log
// never blocks a request, even if the reader of standard error stops reading.
func (l *logging) apply() (func(), error) {
	if errs := logsapi.Validate(l.LoggingConfiguration, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		return nil, fmt.Errorf("%w; correct --logging-format and the flags --log-*", errs.ToAggregate())
	}
	// With the defaults of Kubernetes, gRPC logs a warning for every attempt to connect.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	form := logs.Form{All: l.Verbosity > 0 || len(l.VModule) > 0, JSON: !l.plain()}
	problems := logs.NewSink(os.Stderr, form)
	flush := func() {
		klog.Flush()
		_ = problems.Close() // there is no log to report it to
	}
	if l.Format != logsapi.DefaultLogFormat || l.Options.Text.SplitStream {
		infos := logs.NewSink(os.Stdout, form)
		streams := &logsapi.LoggingOptions{ErrorStream: problems, InfoStream: infos}
		both := func() { flush(); _ = infos.Close() }
		return both, logsapi.ValidateAndApplyWithOptions(l.LoggingConfiguration, streams, utilfeature.DefaultFeatureGate)
	}
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	limited := newLogLimiter(len(l.VModule) > 0)
	limited.to = problems
	klog.SetOutput(limited)
	for name, value := range map[string]string{
		"logtostderr": "false", "stderrthreshold": "FATAL", "one_output": "true",
		"v": logsapi.VerbosityLevelPflag(&l.Verbosity).String(), "vmodule": logsapi.VModuleConfigurationPflag(&l.VModule).String(),
	} {
		if err := flags.Set(name, value); err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
	}
	return flush, nil
}
