package logs

import (
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// WithPaths returns a logger that adds the path of a workspace, under the key "path", to each line with
// the key "cluster". pathOf returns the path of a logical cluster, or nothing.
func WithPaths(log klog.Logger, pathOf func(cluster string) string) klog.Logger {
	switch inner := log.GetSink().(type) {
	case nil, pathSink: // it logs nothing, or has paths already
		return log
	case requestSink:
		if _, has := inner.LogSink.(pathSink); has {
			return log
		}
		return log.WithSink(requestSink{pathSink{LogSink: inner.LogSink, pathOf: pathOf}, inner.shared})
	default:
		return log.WithSink(pathSink{LogSink: inner, pathOf: pathOf})
	}
}

// pathSink adds paths to lines.
type pathSink struct {
	logr.LogSink
	pathOf  func(cluster string) string
	cluster string // of the values of the logger
}

var _ logr.CallDepthLogSink = pathSink{}

// Info implements [logr.LogSink].
func (s pathSink) Info(level int, msg string, keysAndValues ...any) {
	s.WithCallDepth(1).(pathSink).LogSink.Info(level, msg, s.with(keysAndValues)...)
}

// Error implements [logr.LogSink].
func (s pathSink) Error(err error, msg string, keysAndValues ...any) {
	s.WithCallDepth(1).(pathSink).LogSink.Error(err, msg, s.with(keysAndValues)...)
}

// with returns the keys and values of a line, with the path.
func (s pathSink) with(keysAndValues []any) []any {
	at := clusterIn(keysAndValues)
	if at == "" {
		at = s.cluster
	}
	if at == "" {
		return keysAndValues
	}
	if path := s.pathOf(at); path != "" {
		return append(keysAndValues[:len(keysAndValues):len(keysAndValues)], "path", path)
	}
	return keysAndValues
}

// clusterIn returns the value of the key "cluster".
func clusterIn(keysAndValues []any) string {
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		if keysAndValues[i] == "cluster" {
			return fmt.Sprint(keysAndValues[i+1])
		}
	}
	return ""
}

// WithValues implements [logr.LogSink].
func (s pathSink) WithValues(keysAndValues ...any) logr.LogSink {
	if at := clusterIn(keysAndValues); at != "" {
		s.cluster = at
	}
	s.LogSink = s.LogSink.WithValues(keysAndValues...)
	return s
}

// WithName implements [logr.LogSink].
func (s pathSink) WithName(name string) logr.LogSink {
	s.LogSink = s.LogSink.WithName(name)
	return s
}

// WithCallDepth implements [logr.CallDepthLogSink].
func (s pathSink) WithCallDepth(depth int) logr.LogSink {
	if d, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		s.LogSink = d.WithCallDepth(depth)
	}
	return s
}
