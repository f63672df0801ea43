package pods

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

// nodes are the names of nodes in the fields of events. Other events have them in their texts.
type nodes struct {
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

// see remembers the nodes that an event names.
func (n *nodes) see(e *corev1.Event) {
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
func (n *nodes) hide(text string) string {
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

// shownEvent returns an event of a target as the tenant sees it, nil if it is not about an object of
// the workspace. It is about the same object in the workspace, and does not name the node.
func (p *part) shownEvent(e *corev1.Event, version string, seen *nodes) *core.Event {
	physical := p.locator().Physical()
	if e.Namespace != physical || e.InvolvedObject.Namespace != physical {
		return nil
	}
	e = e.DeepCopy()
	e.ObjectMeta = metav1.ObjectMeta{Name: e.Name + "." + p.key[:suffix], Namespace: p.namespace, UID: e.UID, ResourceVersion: version, CreationTimestamp: e.CreationTimestamp}
	if len(validation.IsValidLabelValue(p.location)) == 0 {
		e.Labels = map[string]string{LocationLabel: p.location}
	}
	of := &e.InvolvedObject
	of.Namespace, of.ResourceVersion, e.Related = p.namespace, "", nil
	if of.Kind == "Pod" {
		of.Name = p.podName(of.Name)
	} else if uid, ok := p.workspace.uids[[3]string{p.namespace, of.Kind, of.Name}]; ok {
		of.UID = uid
	}
	if e.Source.Host != "" {
		e.Source.Host = p.location
	}
	if e.ReportingInstance != "" {
		e.ReportingInstance = p.location
	}
	e.Message = hideAddresses(seen.hide(strings.ReplaceAll(e.Message, physical, p.namespace)))
	e.Reason, e.Action = seen.hide(e.Reason), seen.hide(e.Action)
	out := &core.Event{}
	if corev1conversion.Convert_v1_Event_To_core_Event(e, out, nil) != nil {
		return nil
	}
	return out
}

// podName returns the name in the workspace of a pod of which only the name is known.
func (p *part) podName(name string) string {
	if i := strings.LastIndexByte(name, '-'); i > 0 && p.workspace.repeated[[2]string{p.namespace, name[:i]}] {
		return name + "." + p.key[:suffix]
	}
	return name
}
