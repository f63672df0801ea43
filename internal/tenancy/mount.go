package tenancy

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// createMounted stores a new mounted Workspace. It has no cluster. It is Initializing until a
// loop has read the object that it is mounted from.
func (w *Workspaces) createMounted(ctx context.Context, parent cluster.Name, ws *tenancyapi.Workspace, obj *unstructured.Unstructured) error {
	child := ws.DeepCopy()
	now := metav1.Now().Rfc3339Copy()
	setAnnotation(&child.ObjectMeta, core.ShardAnnotation, string(w.Shard))
	child.Status.Phase = core.PhaseInitializing
	setLabel(&child.ObjectMeta, core.PhaseLabel, string(core.PhaseInitializing))
	child.Status.Conditions.Set(conditions.Condition{
		Type: tenancyapi.WorkspaceMountReady, Status: metav1.ConditionUnknown, LastTransitionTime: now, Message: "the object that it is mounted from has not been read yet",
	})
	return w.createAlone(ctx, parent, child, obj)
}

// createAlone stores a new Workspace without a cluster, and returns it in obj.
func (w *Workspaces) createAlone(ctx context.Context, parent cluster.Name, ws *tenancyapi.Workspace, obj *unstructured.Unstructured) error {
	stored, err := values.Unstructured(ws, tenancyapi.GroupVersion.WithKind("Workspace"))
	if err != nil {
		return err
	}
	rev, err := w.Store.Commit(ctx, []store.Write{{Resource: w.Resource, Cluster: parent, Object: stored}})
	if err != nil {
		return err
	}
	values.SetCluster(stored, parent)
	stored.SetResourceVersion(w.Store.ResourceVersion(rev))
	obj.Object = stored.Object
	return nil
}

// A MountSource is the object that a workspace is mounted from, as it was read.
type MountSource struct {
	// Kind reports whether the kind is defined, and Exists whether the object exists.
	Kind, Exists bool
	// Phase, URL and CA are from the status of the object.
	Phase, URL string
	CA         []byte
}

// UpdateMount updates a Workspace from the object that it is mounted from. It writes nothing if
// the Workspace is current.
func (w *Workspaces) UpdateMount(ctx context.Context, parent cluster.Name, name string, source MountSource) error {
	key := keys.Key{Resource: w.Resource, Cluster: parent, Name: name}
	for range retries {
		ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, key)
		if err != nil || ws == nil || ws.Spec.Mount == nil || ws.DeletionTimestamp != nil {
			return err
		}
		if !mounted(ws, source) {
			return nil
		}
		write, err := w.WorkspaceWrite(parent, ws, rev)
		if err != nil {
			return err
		}
		if _, err := w.Store.Commit(ctx, []store.Write{write}); !Moved(err) {
			return err
		}
	}
	return nil // the concurrent changes wake the loop again
}

// mounted updates a Workspace from the object that it is mounted from, and reports whether
// it changed the Workspace. It keeps the URL while the object is not ready.
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

// condition returns the condition of a workspace that is mounted from s.
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

// checkMountURL returns an error if requests cannot be forwarded to a URL.
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
