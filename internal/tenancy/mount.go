package tenancy

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// A Mount is what the tree knows of a workspace that something else serves.
type Mount struct {
	Reference tenancyapi.ObjectReference
	// URL is where it is served, and CA, in PEM, what verifies that it is.
	URL string
	CA  []byte
	// Ready is true while it is served.
	Ready bool
}

// mountOf returns the mount of a Workspace, nil if it has none.
func mountOf(w *childForm) *Mount {
	if w.Spec.Mount == nil {
		return nil
	}
	m := &Mount{Reference: w.Spec.Mount.Reference, URL: w.Spec.URL, Ready: w.Status.Phase == core.PhaseReady}
	m.CA, _ = base64.StdEncoding.DecodeString(w.Metadata.Annotations[tenancyapi.MountCAAnnotation]) // the server wrote it
	return m
}

// MountAt returns the workspace at a path if something else serves it, with the cluster
// that its Workspace is in.
func (t *Tree) MountAt(p cluster.Path) (parent cluster.Name, name string, m *Mount) {
	n, words := p.Split()
	for i, w := range words {
		child, ok := t.Child(n, w)
		switch {
		case !ok:
			return "", "", nil
		case child.Mount != nil && i == len(words)-1:
			return n, w, child.Mount
		case child.Cluster == "":
			return "", "", nil
		}
		n = child.Cluster
	}
	return "", "", nil
}

// Mounted returns the keys of all Workspaces that something else serves.
func (t *Tree) Mounted() []store.Key {
	var all []store.Key
	for _, k := range t.children.Keys() {
		if child, _ := t.Child(k.Cluster, k.Name); child.Mount != nil {
			all = append(all, k)
		}
	}
	return all
}

// createMounted stores a new Workspace that something else serves, for which no cluster is
// made. It is Initializing until a loop has looked at the object that it is mounted from.
func (w *Workspaces) createMounted(ctx context.Context, parent cluster.Name, ws *tenancyapi.Workspace, obj *unstructured.Unstructured) error {
	child := ws.DeepCopy()
	now := metav1.Now().Rfc3339Copy()
	setAnnotation(&child.ObjectMeta, core.ShardAnnotation, ShardName)
	child.Status.Phase = core.PhaseInitializing
	setLabel(&child.ObjectMeta, core.PhaseLabel, string(core.PhaseInitializing))
	child.Status.Conditions.Set(conditions.Condition{
		Type: tenancyapi.WorkspaceMountReady, Status: metav1.ConditionUnknown, LastTransitionTime: now, Message: "the object that it is mounted from has not been looked at",
	})
	stored, err := toUnstructured(child, tenancyapi.GroupVersion.WithKind("Workspace"))
	if err != nil {
		return err
	}
	rev, err := w.Store.Commit(ctx, []store.Write{{Resource: w.Resource, Cluster: parent, Object: stored}})
	if err != nil {
		return err
	}
	stampCluster(stored, parent)
	stored.SetResourceVersion(strconv.FormatInt(rev, 10))
	obj.Object = stored.Object
	return nil
}

// A MountSource is the object that a workspace is mounted from, as it was read.
type MountSource struct {
	// Kind is false while there is no such kind, Mountable while the kind is not marked
	// as what workspaces may be mounted from, and Exists while there is no such object.
	Kind, Mountable, Exists bool
	// Phase, URL and CA are what the object says of itself.
	Phase, URL string
	CA         []byte
}

// Remount has a Workspace say how it is served, according to the object that it is
// mounted from. It does nothing where it does.
func (w *Workspaces) Remount(ctx context.Context, parent cluster.Name, name string, source MountSource) error {
	key := store.Key{Resource: w.Resource, Cluster: parent, Name: name}
	for range retries {
		ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, key)
		if err != nil || ws == nil || ws.Spec.Mount == nil || ws.DeletionTimestamp != nil {
			return err
		}
		if !mounted(ws, source) {
			return nil
		}
		stored, err := toUnstructured(ws, tenancyapi.GroupVersion.WithKind("Workspace"))
		if err != nil {
			return err
		}
		if _, err := w.Store.Commit(ctx, []store.Write{{Resource: w.Resource, Cluster: parent, Object: stored, Expect: rev}}); !moved(err) {
			return err
		}
	}
	return nil // whatever changed it wakes whoever asked
}

// mounted brings a Workspace in step with the object that it is mounted from, and reports
// whether that changes anything. The URL of one that is not ready stays as it was.
func mounted(ws *tenancyapi.Workspace, source MountSource) bool {
	c := source.condition(ws.Spec.Mount.Reference)
	phase, changed := core.PhaseUnavailable, ws.Status.Conditions.Set(c)
	if c.Status == metav1.ConditionTrue {
		phase = core.PhaseReady
		ca := base64.StdEncoding.EncodeToString(source.CA)
		if ws.Spec.URL != source.URL || ws.Annotations[tenancyapi.MountCAAnnotation] != ca {
			ws.Spec.URL, changed = source.URL, true
			if setAnnotation(&ws.ObjectMeta, tenancyapi.MountCAAnnotation, ca); ca == "" {
				delete(ws.Annotations, tenancyapi.MountCAAnnotation)
			}
		}
	}
	if ws.Status.Phase != phase || ws.Labels[core.PhaseLabel] != string(phase) {
		ws.Status.Phase, changed = phase, true
		setLabel(&ws.ObjectMeta, core.PhaseLabel, string(phase))
	}
	return changed
}

// condition says whether a workspace can be served that is mounted from s.
func (s MountSource) condition(ref tenancyapi.ObjectReference) conditions.Condition {
	c := conditions.Condition{Type: tenancyapi.WorkspaceMountReady, Status: metav1.ConditionFalse, Severity: conditions.SeverityError}
	object := ref.Kind + " " + ref.Name
	if ref.Namespace != "" {
		object = ref.Kind + " " + ref.Namespace + "/" + ref.Name
	}
	url := checkMountURL(s.URL)
	switch {
	case !s.Kind:
		c.Reason, c.Message = tenancyapi.MountObjectNotFound, fmt.Sprintf("there is no custom resource of kind %s in %s here", ref.Kind, ref.APIVersion)
	case !s.Mountable:
		c.Reason, c.Message = tenancyapi.MountAnnotationInvalid, fmt.Sprintf("the CustomResourceDefinition of %s lacks the annotation %s: \"true\"", ref.Kind, tenancyapi.IsMountAnnotation)
	case !s.Exists:
		c.Reason, c.Message = tenancyapi.MountObjectNotFound, fmt.Sprintf("there is no %s", object)
	case s.Phase != string(core.PhaseReady):
		c.Severity = conditions.SeverityInfo
		c.Reason, c.Message = tenancyapi.MountObjectNotReady, fmt.Sprintf("%s is not Ready: its status.phase is %q", object, s.Phase)
	case url != nil:
		c.Reason, c.Message = tenancyapi.MountObjectNotReady, fmt.Sprintf("%s: its status.URL %q cannot be used: %v", object, s.URL, url)
	case len(s.CA) > 0 && !x509.NewCertPool().AppendCertsFromPEM(s.CA):
		c.Reason, c.Message = tenancyapi.MountObjectNotReady, fmt.Sprintf("%s: its status.caBundle has no certificate in PEM", object)
	default:
		c.Status, c.Severity = metav1.ConditionTrue, conditions.SeverityNone
	}
	return c
}

// checkMountURL returns why requests cannot be passed on to a URL.
func checkMountURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return err
	case u.Scheme != "https" || u.Hostname() == "":
		return errors.New("it must be like https://host/path")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return errors.New("it must have no user, query or fragment")
	}
	return nil
}
