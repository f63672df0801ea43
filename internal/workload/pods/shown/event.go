package shown

import (
	"regexp"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
)

// Nodes are the names of nodes in the fields of events. Other events have them in their texts.
type Nodes struct {
	mu    sync.Mutex
	names map[string]bool // guarded by mu
}

// mostNodes is the maximum of names that are remembered.
const mostNodes = 1000

// The texts in which the scheduler and others name a node.
var (
	assigned = regexp.MustCompile(`^Successfully assigned \S+ to (\S+)$`)
	named    = regexp.MustCompile(`(?i)\bnode[ :=]+(?:"([^"]+)"|'([^']+)'|([a-z0-9.-]*[0-9.-][a-z0-9.-]*[a-z0-9]))`)
)

// See remembers the nodes that an event names.
func (n *Nodes) See(e *corev1.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.names == nil {
		n.names = map[string]bool{}
	}
	found := []string{e.Source.Host, e.ReportingInstance}
	if m := assigned.FindStringSubmatch(e.Message); m != nil {
		found = append(found, m[1])
	}
	for _, m := range named.FindAllStringSubmatch(e.Message, -1) {
		found = append(found, m[1:]...)
	}
	for _, name := range found {
		host, _, _ := strings.Cut(name, ".")
		for _, one := range []string{name, host} {
			if one != "" && len(n.names) < mostNodes {
				n.names[one] = true
			}
		}
	}
}

// hide removes the names from a text.
func (n *Nodes) hide(text string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return words.ReplaceAllStringFunc(text, func(word string) string {
		if host, _, _ := strings.Cut(word, "."); n.names[word] || n.names[host] {
			return hiddenText
		}
		return word
	})
}

var words = regexp.MustCompile(`[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?`)

// Event returns an event of a target as the tenant sees it, nil if it is not about an object of
// the workspace. It is about the same object in the workspace, and does not name the node.
func (o *Origin) Event(e *corev1.Event, version string, seen *Nodes) *core.Event {
	if e.Namespace != o.Physical || e.InvolvedObject.Namespace != o.Physical {
		return nil
	}
	e = e.DeepCopy()
	e.ObjectMeta = metav1.ObjectMeta{Name: o.suffixed(e.Name), Namespace: o.Namespace, UID: e.UID, ResourceVersion: version, CreationTimestamp: e.CreationTimestamp}
	if len(validation.IsValidLabelValue(o.Location)) == 0 {
		e.Labels = map[string]string{LocationLabel: o.Location}
	}
	of := &e.InvolvedObject
	of.Namespace, of.ResourceVersion, e.Related = o.Namespace, "", nil
	if of.Kind == "Pod" {
		of.Name = o.podName(of.Name)
	} else if uid, ok := o.Workloads.uids[[3]string{o.Namespace, of.Kind, of.Name}]; ok {
		of.UID = uid
	}
	if e.Source.Host != "" {
		e.Source.Host = o.Location
	}
	if e.ReportingInstance != "" {
		e.ReportingInstance = o.Location
	}
	e.Message = HideAddresses(seen.hide(strings.ReplaceAll(e.Message, o.Physical, o.Namespace)))
	e.Reason, e.Action = seen.hide(e.Reason), seen.hide(e.Action)
	out := &core.Event{}
	if corev1conversion.Convert_v1_Event_To_core_Event(e, out, nil) != nil {
		return nil
	}
	return out
}

// podName returns the name in the workspace of a pod of which only the name is known.
func (o *Origin) podName(name string) string {
	if i := strings.LastIndexByte(name, '-'); i > 0 && o.Workloads.repeated[[2]string{o.Namespace, name[:i]}] {
		return o.suffixed(name)
	}
	return name
}

// PhysicalEvent returns the name that an event of the workspace has at the target. ok is false if the event is not from
// there.
func (o *Origin) PhysicalEvent(name string) (physical string, ok bool) { return o.cut(name) }
