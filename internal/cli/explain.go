package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

func (a *app) explainCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "explain [workspace]",
		Short: "Tell what a workspace is, and why it does not do what you expect",
		Long:  "Tell what a workspace is and what you may do in it, and if something is wrong, why: why it is not ready, why it is not gone, why you cannot enter it, and what to do about it. It uses what you may read, so that others may be told more.",
		Example: `  # Why can I not go there?
  kubectl ws explain :root:org:team

  # What is the current workspace, and what may I do in it?
  kubectl ws explain`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete,
	}
	outputFlag(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, srv, err := a.openAt(cmd.Context(), args)
		if err != nil {
			return err
		}
		facts, err := srv.investigate(cmd.Context(), srv.base.path)
		if err != nil {
			return err
		}
		e := facts.explain()
		if f != "" {
			return a.print.result(f, e, e.Path)
		}
		a.print.explanation(e)
		return nil
	}
	return cmd
}

// Facts are what can be found out about a workspace.
type facts struct {
	at      place
	user    *authenticationv1.UserInfo
	object  *tenancy.Workspace   // in the workspace above; nil if the user may not read it
	cluster *core.LogicalCluster // in the workspace itself; nil if the user may not read it
	lookup  error                // why there is no object
	reach   error                // why nothing in the workspace answers
	rights  []string
}

// investigate asks the server all that there is to know of the workspace at path.
// It fails if the server does not answer.
func (s *server) investigate(ctx context.Context, path cluster.Path) (*facts, error) {
	f := &facts{at: s.base.at(path)}
	f.object, f.lookup = s.object(ctx, path)
	f.reach = s.reach(ctx, path)
	for _, err := range []error{f.lookup, f.reach} {
		var status apierrors.APIStatus
		if err != nil && !errors.As(err, &status) || apierrors.IsUnauthorized(err) {
			return nil, fmt.Errorf("cannot find out about workspace %q: %w", path, err)
		}
	}
	f.user = s.whoami(ctx, path)
	if f.reach != nil {
		return f, nil
	}
	if o, err := s.logicalCluster(ctx, path); err == nil {
		f.cluster = o
	}
	var err error
	if f.rights, err = s.rights(ctx, path); err != nil {
		return nil, fmt.Errorf("cannot find out what you may do in workspace %q: %w", path, err)
	}
	return f, nil
}

// whoami returns who the server takes the user for. It asks in the first cluster
// on the way up that lets the user in.
func (s *server) whoami(ctx context.Context, path cluster.Path) *authenticationv1.UserInfo {
	for up, ok := path, true; ok; up, _, ok = parent(up) {
		client, err := authenticationclient.NewForConfigAndClient(s.in(up), s.client)
		if err != nil {
			return nil
		}
		review, err := client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err == nil {
			return &review.Status.UserInfo
		}
	}
	return nil
}

func (s *server) logicalCluster(ctx context.Context, path cluster.Path) (*core.LogicalCluster, error) {
	clusters, err := s.objects(path, "core.kcp.io", "logicalclusters")
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

// rights returns what the user may do in the workspace at path, in words.
func (s *server) rights(ctx context.Context, path cluster.Path) ([]string, error) {
	client, err := authorizationclient.NewForConfigAndClient(s.in(path), s.client)
	if err != nil {
		return nil, err
	}
	may := []string{"enter it"}
	for _, q := range []struct {
		words string
		asks  authorizationv1.ResourceAttributes
	}{
		{"read objects such as config maps", authorizationv1.ResourceAttributes{Verb: "list", Resource: "configmaps"}},
		{"change objects such as config maps", authorizationv1.ResourceAttributes{Verb: "update", Resource: "configmaps"}},
		{"read secrets", authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"}},
		{"make workspaces in it", authorizationv1.ResourceAttributes{Verb: "create", Group: "tenancy.kcp.io", Resource: "workspaces"}},
		{"let others in", authorizationv1.ResourceAttributes{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}},
		{"do everything", authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"}},
	} {
		review, err := client.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &q.asks},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if review.Status.Allowed {
			may = append(may, q.words)
		}
	}
	return may, nil
}

// An explanation is what a user is told about a workspace.
type explanation struct {
	Path     string     `json:"path"`
	Type     string     `json:"type,omitempty"`
	Phase    core.Phase `json:"phase,omitempty"`
	Cluster  string     `json:"cluster,omitempty"`
	URL      string     `json:"URL"`
	Owner    string     `json:"owner,omitempty"`
	User     string     `json:"user,omitempty"`
	Groups   []string   `json:"groups,omitempty"`
	Rights   []string   `json:"rights,omitempty"`
	Problems []problem  `json:"problems,omitempty"`
}

// A problem is something that keeps a workspace from being what it should be.
type problem struct {
	What string `json:"what"`
	Fix  string `json:"fix,omitempty"`
}

// explain decides what to tell.
func (f *facts) explain() explanation {
	e := explanation{Path: string(f.at.path), URL: f.at.URL(), Rights: f.rights}
	if f.user != nil {
		e.User, e.Groups = f.user.Username, f.user.Groups
	}
	var state state
	if c := f.cluster; c != nil {
		e.Type, e.Cluster, e.Phase = c.Annotations[tenancy.TypeAnnotation], c.Annotations[core.ClusterAnnotation], c.Status.Phase
		e.Owner = owner(c.Annotations)
		state.add(c.ObjectMeta, c.Status.Conditions)
		state.initializers, state.terminators = c.Status.Initializers, c.Status.Terminators
	}
	if w := f.object; w != nil {
		e.Type, e.Cluster, e.Phase = typeName(w), w.Spec.Cluster, w.Status.Phase
		e.Owner = owner(w.Annotations)
		state.add(w.ObjectMeta, w.Status.Conditions)
		state.initializers, state.terminators = w.Status.Initializers, w.Status.Terminators
	}
	if f.object == nil && f.cluster == nil {
		e.Problems = append(e.Problems, f.hidden())
		return e
	}
	e.Problems = append(e.Problems, state.problems(e.Phase)...)
	if apierrors.IsForbidden(f.reach) && e.Phase != core.PhaseInactive {
		e.Problems = append(e.Problems, problem{"You may not enter it: " + f.reach.Error(), f.ask()})
	}
	return e
}

// owner returns the name of the user who made a workspace.
func owner(annotations map[string]string) string {
	var user authenticationv1.UserInfo
	if json.Unmarshal([]byte(annotations[tenancy.OwnerAnnotation]), &user) != nil {
		return ""
	}
	return user.Username
}

// hidden says why nothing is known about the workspace.
func (f *facts) hidden() problem {
	switch {
	case f.reach == nil:
		return problem{"You may enter it, but not read what it says of itself.", ""}
	case apierrors.IsNotFound(f.reach), apierrors.IsNotFound(f.lookup):
		return problem{"There is no such workspace.", "See what there is: kubectl ws tree :"}
	case apierrors.IsForbidden(f.reach):
		return problem{"You may not enter it, or it does not exist: " + f.reach.Error(), f.ask()}
	default:
		return problem{f.reach.Error(), ""}
	}
}

// ask says whom to ask for what to be let in.
func (f *facts) ask() string {
	name := "<you>"
	if f.user != nil {
		name = f.user.Username
	}
	if name == anonymous {
		return "You are not logged in: check the user of your context with kubectl config view --minify"
	}
	return fmt.Sprintf("Ask an administrator of it to run: kubectl ws share %s --role view -w :%s", shellWord(name), f.at.path)
}

// shellWord returns what a shell takes for word.
func shellWord(word string) string {
	if strings.Trim(word, plain) == "" && !strings.Contains(word, " ") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// A state is what a Workspace and its LogicalCluster say of themselves.
type state struct {
	deleted      bool
	finalizers   []string
	conditions   conditions.Conditions
	initializers []core.Initializer
	terminators  []core.Terminator
}

// systemFinalizers are those that stay until the content is gone, as they should.
func systemFinalizers() []string {
	return []string{core.LogicalClusterFinalizer, core.DeletionFinalizer, core.TerminatorsFinalizer}
}

func (s *state) add(o metav1.ObjectMeta, all conditions.Conditions) {
	s.deleted = s.deleted || o.DeletionTimestamp != nil
	for _, name := range o.Finalizers {
		if !slices.Contains(systemFinalizers(), name) && !slices.Contains(s.finalizers, name) {
			s.finalizers = append(s.finalizers, name)
		}
	}
	for _, c := range all {
		known := slices.ContainsFunc(s.conditions, func(o conditions.Condition) bool { return o.Type == c.Type })
		if c.Status != metav1.ConditionTrue && !known {
			s.conditions = append(s.conditions, c)
		}
	}
}

// problems returns what keeps a workspace in its phase, if that is not Ready.
func (s *state) problems(phase core.Phase) (all []problem) {
	say := func(fix, format string, args ...any) { all = append(all, problem{fmt.Sprintf(format, args...), fix}) }
	switch phase {
	case core.PhaseScheduling, "":
		say("", "It is not known yet where it will be.")
	case core.PhaseInitializing:
		for _, i := range s.initializers {
			say("See that the controller behind it runs: it removes its initializer when it has finished.", "Initializer %s has not finished.", i)
		}
	case core.PhaseInactive:
		say("Ask an operator to remove the annotation "+core.InactiveAnnotation+" from its LogicalCluster.", "An operator has taken it offline.")
	case core.PhaseUnavailable:
		say("", "It was ready, and cannot be served at the moment.")
	case core.PhaseTerminating, core.PhaseDeleting:
		for _, t := range s.terminators {
			say("See that the controller behind it runs: it removes its terminator when it has finished.", "Terminator %s has not finished.", t)
		}
	}
	if s.deleted {
		for _, name := range s.finalizers {
			say("See that the controller behind it runs: it removes its finalizer when it has finished.", "It is being deleted, and finalizer %s holds it.", name)
		}
	}
	for _, c := range s.conditions {
		if s.deleted || c.Type != core.WorkspaceContentDeleted {
			say("", "Condition %s is %s: %s", c.Type, c.Status, strings.Join(slices.DeleteFunc([]string{c.Reason, c.Message}, func(s string) bool { return s == "" }), ": "))
		}
	}
	return all
}

func (p *printer) explanation(e explanation) {
	var rows [][]string
	for _, row := range [][]string{
		{"Workspace:", e.Path}, {"Type:", e.Type}, {"Phase:", string(e.Phase)}, {"Cluster:", e.Cluster},
		{"URL:", e.URL}, {"Owner:", e.Owner}, {"You are:", e.User}, {"You may:", strings.Join(e.Rights, ", ")},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	p.table(rows)
	if len(e.Problems) == 0 {
		p.say("Nothing is wrong with it.")
	}
	for _, problem := range e.Problems {
		p.say("\n%s", problem.What)
		if problem.Fix != "" {
			p.say("  %s", problem.Fix)
		}
	}
}
