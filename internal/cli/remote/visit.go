package remote

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cluster"
)

// Visit checks that the user can enter the workspace at path. It returns its type, which is
// empty if the user may not read it, and a note about its phase.
func (s *Server) Visit(ctx context.Context, path cluster.Path) (typ, remark string, err error) {
	w, lookup := s.Object(ctx, path)
	var status apierrors.APIStatus
	if lookup != nil && !errors.As(lookup, &status) {
		return "", "", fmt.Errorf("cannot enter workspace %q: %w", path, lookup) // the server did not answer
	}
	remark, err = judge(path, w, lookup, s.Reach(ctx, path))
	if err != nil {
		return "", "", err
	}
	if w != nil {
		return TypeName(w), remark, nil
	}
	return s.typeOf(ctx, path), remark, nil
}

// Object returns the Workspace at path, or nil if path has no parent.
func (s *Server) Object(ctx context.Context, path cluster.Path) (*tenancy.Workspace, error) {
	up, name, ok := paths.Parent(path)
	if !ok {
		return nil, nil
	}
	return s.Get(ctx, up, name)
}

// judge decides whether a user can enter a workspace. It gets the results of two requests:
// for the Workspace in the parent (w and lookup), which the user may not be allowed to
// read, and to the workspace itself (reach).
func judge(path cluster.Path, w *tenancy.Workspace, lookup, reach error) (remark string, err error) {
	if w != nil {
		if remark, err = remarkOn(path, w); err != nil {
			return "", err
		}
	}
	switch {
	case reach == nil:
		return remark, nil
	case apierrors.IsNotFound(reach), w == nil && apierrors.IsNotFound(lookup) && apierrors.IsForbidden(reach):
		return "", fmt.Errorf("workspace %q not found; to see which there are, run: kubectl ws tree", path)
	case apierrors.IsForbidden(reach) && w != nil:
		if w.Status.Phase == core.PhaseInactive {
			return remark, nil // it refuses all requests until somebody activates it
		}
		return "", About(path, "access to workspace %q denied: %w", path, reach)
	case apierrors.IsForbidden(reach):
		return "", About(path, "access to workspace %q denied, or it does not exist: %w", path, reach)
	default:
		return "", fmt.Errorf("cannot enter workspace %q: %w", path, reach)
	}
}

// remarkOn returns a note about the phase of w, or an error if the user cannot enter w in
// that phase.
func remarkOn(path cluster.Path, w *tenancy.Workspace) (string, error) {
	switch phase := w.Status.Phase; phase {
	case core.PhaseReady:
		return "", nil
	case core.PhaseTerminating, core.PhaseDeleting:
		return fmt.Sprintf("note: workspace %q is being deleted", path), nil
	case core.PhaseInactive:
		return fmt.Sprintf("note: workspace %q is inactive: it answers no requests", path), nil
	case core.PhaseUnavailable:
		return "", fmt.Errorf("workspace %q is not available%s", path, Reason(w))
	default:
		return "", fmt.Errorf("workspace %q is not ready%s; in the parent workspace, run: kubectl wait workspace/%s --for=jsonpath={.status.phase}=Ready", path, Reason(w), w.Name)
	}
}

// Reason returns why w is not ready, in parentheses for the end of a sentence.
func Reason(w *tenancy.Workspace) string {
	phase := w.Status.Phase
	if phase == "" {
		phase = core.PhaseScheduling
	}
	text := fmt.Sprintf(" (%s", phase)
	for _, c := range w.Status.Conditions {
		if c.Status != metav1.ConditionFalse {
			continue
		}
		text += fmt.Sprintf(", %s: %s", c.Type, c.Reason)
		if c.Message != "" {
			text += ": " + c.Message
		}
	}
	return text + ")"
}

// Home returns the path of the home workspace of the user.
func (s *Server) Home(ctx context.Context) (cluster.Path, error) {
	w, err := s.Get(ctx, cluster.Path(cluster.Root), HomeName)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "", errors.New("you have no home workspace on this server; enter a workspace by its path, for example: kubectl ws :root")
	case err != nil:
		return "", fmt.Errorf("cannot find your home workspace: %w", err)
	}
	path, err := cluster.ParsePath(w.Spec.Cluster)
	if at, ok := kubeconfig.ParsePlace(w.Spec.URL); ok {
		path, err = at.Path, nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot find your home workspace: the server sent no valid path: %w", err)
	}
	if c, err := s.LogicalCluster(ctx, path); err == nil { // a path is easier to read than a name
		if own, err := cluster.ParsePath(PathOf(c.Annotations)); err == nil {
			return own, nil
		}
	}
	return path, nil
}

// LogicalCluster returns the LogicalCluster of the workspace at path.
func (s *Server) LogicalCluster(ctx context.Context, path cluster.Path) (*core.LogicalCluster, error) {
	clusters, err := s.Objects(path, core.GroupVersion, "logicalclusters")
	if err != nil {
		return nil, err
	}
	o, err := clusters.Get(ctx, core.LogicalClusterName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := &core.LogicalCluster{}
	return c, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, c)
}
