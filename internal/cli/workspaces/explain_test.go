package workspaces

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/output"
)

func TestExplain(t *testing.T) {
	resource := schema.GroupResource{Group: "tenancy.kcp.io", Resource: "workspaces"}
	forbidden := apierrors.NewForbidden(resource, "", nil)
	notFound := apierrors.NewNotFound(resource, "x")
	workspace := func(phase core.Phase, change func(*tenancy.Workspace)) *tenancy.Workspace {
		w := &tenancy.Workspace{}
		w.Status.Phase = phase
		w.Finalizers = []string{core.LogicalClusterFinalizer}
		if change != nil {
			change(w)
		}
		return w
	}
	deleted := func(w *tenancy.Workspace) {
		w.DeletionTimestamp = &metav1.Time{}
		w.Finalizers = append(w.Finalizers, "example.com/keep")
		w.Status.Terminators = []core.Terminator{"root:cleaner"}
		w.Status.Conditions = conditions.Conditions{{Type: core.WorkspaceContentDeleted, Status: metav1.ConditionFalse, Reason: "SomeContent", Message: "configmaps/x has finalizer y"}}
	}
	mounted := func(w *tenancy.Workspace) {
		w.Spec.Mount = &tenancy.Mount{Reference: tenancy.ObjectReference{Kind: "Edge", Name: "far"}}
	}
	refused := apierrors.NewServiceUnavailable("no answer")
	for name, c := range map[string]struct {
		facts facts
		want  []string // the problems, and what to do
	}{
		"well":           {facts{object: workspace(core.PhaseReady, nil)}, nil},
		"well, from in":  {facts{cluster: &core.LogicalCluster{Status: core.LogicalClusterStatus{Phase: core.PhaseReady}}}, nil},
		"nothing to see": {facts{}, []string{"You may enter it, but you may read neither"}},
		"not there":      {facts{lookup: notFound, reach: forbidden}, []string{"There is no such workspace.", "kubectl ws tree"}},
		"hidden":         {facts{lookup: forbidden, reach: forbidden, user: &authenticationv1.UserInfo{Username: "o'brian"}}, []string{"You may not enter it, or it does not exist", "kubectl ws share 'o'\\''brian' --role view -w :root:x"}},
		"no entry":       {facts{object: workspace(core.PhaseReady, nil), reach: forbidden, user: &authenticationv1.UserInfo{Username: "alice"}}, []string{"You may not enter it", "share alice"}},
		"a stranger":     {facts{lookup: forbidden, reach: forbidden, user: &authenticationv1.UserInfo{Username: "system:anonymous"}}, []string{"You may not enter it", "not logged in"}},
		"initializing": {facts{object: workspace(core.PhaseInitializing, func(w *tenancy.Workspace) { w.Status.Initializers = []core.Initializer{"root:slow"} })},
			[]string{"Initializer root:slow has not finished.", "controller"}},
		"inactive":         {facts{object: workspace(core.PhaseInactive, nil), reach: forbidden}, []string{"An operator has taken it offline.", core.InactiveAnnotation}},
		"unavailable":      {facts{object: workspace(core.PhaseUnavailable, nil)}, []string{"temporarily unavailable"}},
		"mount, not ready": {facts{object: workspace(core.PhaseUnavailable, mounted), reach: refused}, []string{"It is mounted from Edge far, which is not ready.", "kubectl get edge far -o yaml"}},
		"mount of a hostile kind": {facts{object: workspace(core.PhaseUnavailable, func(w *tenancy.Workspace) {
			w.Spec.Mount = &tenancy.Mount{Reference: tenancy.ObjectReference{Kind: "edge;reboot", Name: "$(reboot)", Namespace: "a'b"}}
		})}, []string{"It is mounted from", `kubectl get 'edge;reboot' '$(reboot)' -n 'a'\''b' -o yaml`}},
		"mount, no answer": {facts{object: workspace(core.PhaseReady, mounted), reach: refused}, []string{"It does not answer requests: no answer", "kubectl get edge far -o yaml"}},
		"does not answer":  {facts{object: workspace(core.PhaseReady, nil), reach: refused}, []string{"It does not answer requests: no answer"}},
		"scheduling":       {facts{object: workspace(core.PhaseScheduling, nil)}, []string{"no shard yet"}},
		"deleting": {facts{object: workspace(core.PhaseDeleting, deleted)},
			[]string{"Terminator root:cleaner", "controller", "Finalizer example.com/keep blocks its deletion", "controller", "WorkspaceContentDeleted is False: SomeContent: configmaps/x has finalizer y"}},
		"told": {facts{reach: forbidden, lookup: forbidden, told: &tenancy.WorkspaceExplanation{
			Phase: core.PhaseDeleting, Deleting: true,
			Obstacles: []tenancy.Obstacle{{Type: "Terminator", Name: "root:t"}, {Type: "Finalizer", Name: "example.com/f"}, {Type: "WorkspaceContentDeleted", Name: "SomeContent", Message: "left"}},
			Access:    tenancy.AccessExplanation{User: "alice", Request: "access /", Message: "no role; ask somebody"},
		}}, []string{"Terminator root:t", "controller", "Finalizer example.com/f", "controller", "WorkspaceContentDeleted is False: SomeContent: left", "User alice may not enter it.", "No role; ask somebody."}},
	} {
		c.facts.at = kubeconfig.Place{Server: "https://h", Path: "root:x"}
		var got []string
		for _, p := range c.facts.explain().Problems {
			got = append(got, p.What)
			if p.Fix != "" {
				got = append(got, p.Fix)
			}
		}
		same := cmp.Comparer(func(a, b string) bool { return strings.Contains(a, b) || strings.Contains(b, a) })
		if diff := cmp.Diff(c.want, got, same); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestInquiry(t *testing.T) {
	for _, c := range []struct {
		q    inquiry
		want string
	}{
		{inquiry{}, "workspace=root%3Ax"},
		{inquiry{user: "a b", groups: []string{"g", "h"}}, "group=g&group=h&user=a+b&workspace=root%3Ax"},
		{inquiry{verb: "delete", resource: "apps.example.com/shop", namespace: "dev"}, "apiGroup=example.com&name=shop&namespace=dev&resource=apps&verb=delete&workspace=root%3Ax"},
		{inquiry{verb: "get", resource: "/metrics"}, "path=%2Fmetrics&verb=get&workspace=root%3Ax"},
	} {
		if got := c.q.query("root:x").Encode(); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.q, got, c.want)
		}
	}
}

// Texts of other users cannot control the terminal.
func TestControlCharacters(t *testing.T) {
	streams, _, out, notes := genericiooptions.NewTestIOStreams()
	p := output.New(streams)
	const hostile = "a\x1b]0;title\a\r\u009b2Jb\n\tc"
	p.Say("%s", hostile)
	p.Note("error: %s", hostile)
	printExplanation(p, explanation{Owner: hostile, Problems: []problem{{What: hostile}}})
	for _, text := range []string{out.String(), notes.String()} {
		if strings.ContainsAny(text, "\x1b\a\r\u009b") || !strings.Contains(text, "b\n\tc") {
			t.Errorf("printed %q", text)
		}
	}
}
