package provider

import (
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
)

// GetEventRecorderFor implements recorder.Provider. A view has no Events: they are logged.
func (t *tenant) GetEventRecorderFor(name string) record.EventRecorder {
	return oldLogged(t.logged(name))
}

// GetEventRecorder implements recorder.Provider. A view has no Events: they are logged.
func (t *tenant) GetEventRecorder(name string) events.EventRecorder { return t.logged(name) }

func (t *tenant) logged(name string) logged {
	return logged{t.p.log.WithName(name).WithValues("cluster", t.name)}
}

// logged logs events.
type logged struct{ log logr.Logger }

// Eventf implements events.EventRecorder.
func (l logged) Eventf(_, _ runtime.Object, kind, reason, action, note string, args ...any) {
	l.log.Info("event of a tenant", "type", kind, "reason", reason, "action", action, "note", fmt.Sprintf(note, args...))
}

// oldLogged is a logged with the methods of an older interface.
type oldLogged logged

// Event implements record.EventRecorder.
func (l oldLogged) Event(o runtime.Object, kind, reason, message string) {
	logged(l).Eventf(o, nil, kind, reason, "", "%s", message)
}

// Eventf implements record.EventRecorder.
func (l oldLogged) Eventf(o runtime.Object, kind, reason, message string, args ...any) {
	logged(l).Eventf(o, nil, kind, reason, "", message, args...)
}

// AnnotatedEventf implements record.EventRecorder.
func (l oldLogged) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, message string, args ...any) {
	logged(l).Eventf(o, nil, kind, reason, "", message, args...)
}
