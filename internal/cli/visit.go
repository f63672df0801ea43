package cli

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// visit checks that the workspace at path can be entered. It returns the type
// of the workspace, empty if the user may not know it, and what there is to say
// about the workspace before entering it.
func (s *server) visit(ctx context.Context, path cluster.Path) (typ, remark string, err error) {
	w, lookup := s.object(ctx, path)
	var status apierrors.APIStatus
	if lookup != nil && !errors.As(lookup, &status) {
		return "", "", fmt.Errorf("cannot enter workspace %q: %w", path, lookup) // no answer: no use in asking more
	}
	remark, err = judge(path, w, lookup, s.reach(ctx, path))
	if err != nil {
		return "", "", err
	}
	if w != nil {
		return typeName(w), remark, nil
	}
	return s.typeOf(ctx, path), remark, nil
}

// object returns the Workspace at path, none if there is nothing above path
// that could have it.
func (s *server) object(ctx context.Context, path cluster.Path) (*tenancy.Workspace, error) {
	up, name, ok := parent(path)
	if !ok {
		return nil, nil
	}
	return s.get(ctx, up, name)
}

// judge decides whether a workspace may be entered from the answers to two
// questions: for its Workspace in the cluster above (w or lookup), which not
// everybody may ask, and for anything in the workspace itself (reach).
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
		return "", fmt.Errorf("workspace %q not found; see what there is: kubectl ws tree", path)
	case apierrors.IsForbidden(reach) && w != nil:
		if w.Status.Phase == core.PhaseInactive {
			return remark, nil // nothing in there answers, and it is entered to be woken up
		}
		return "", fmt.Errorf("access to workspace %q denied: %w", path, reach)
	case apierrors.IsForbidden(reach):
		return "", fmt.Errorf("access to workspace %q denied, or it does not exist: %w", path, reach)
	default:
		return "", fmt.Errorf("cannot enter workspace %q: %w", path, reach)
	}
}

// remarkOn returns what there is to say about w by its phase, or an error if
// it cannot be used in that phase.
func remarkOn(path cluster.Path, w *tenancy.Workspace) (string, error) {
	switch phase := w.Status.Phase; phase {
	case core.PhaseReady:
		return "", nil
	case core.PhaseTerminating, core.PhaseDeleting:
		return fmt.Sprintf("note: workspace %q is being deleted", path), nil
	case core.PhaseInactive:
		return fmt.Sprintf("note: workspace %q is inactive: it answers no requests", path), nil
	case core.PhaseUnavailable:
		return "", fmt.Errorf("workspace %q is not available%s", path, reason(w))
	default:
		return "", fmt.Errorf("workspace %q is not ready%s; in the workspace above, run: kubectl wait workspace/%s --for=jsonpath={.status.phase}=Ready", path, reason(w), w.Name)
	}
}

// reason returns what w says about why it is not ready, as the end of a sentence.
func reason(w *tenancy.Workspace) string {
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

// home returns the path of the home workspace of the user.
func (s *server) home(ctx context.Context) (cluster.Path, error) {
	w, err := s.get(ctx, cluster.Path(cluster.Root), home)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "", errors.New("home workspaces are not available on this server, or not to you; name a workspace, for example: kubectl ws :root")
	case err != nil:
		return "", fmt.Errorf("cannot find your home workspace: %w", err)
	}
	path, err := cluster.ParsePath(w.Spec.Cluster)
	if at, ok := parsePlace(w.Spec.URL); ok {
		path, err = at.path, nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot find your home workspace: the server does not say where it is: %w", err)
	}
	if c, err := s.logicalCluster(ctx, path); err == nil { // people call it by its path
		if own, err := cluster.ParsePath(pathOf(c.Annotations)); err == nil {
			return own, nil
		}
	}
	return path, nil
}
