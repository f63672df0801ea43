package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
)

func (a *app) explainCommand() *cobra.Command {
	var f format
	var q inquiry
	cmd := &cobra.Command{
		Use:   "explain [workspace [verb resource]]",
		Short: "Tell what a workspace is, and why it does not do what you expect",
		Long:  "Tell what a workspace is and what you may do in it, and if something is wrong, why: why it is not ready, why it is not gone, why you cannot enter it, and what to do about it. With a verb and a resource it tells how such a request is decided. It tells what you may know, so that others may be told more.",
		Example: `  # Why can I not go there?
  kubectl ws explain :root:org:team

  # What is the current workspace, and what may I do in it?
  kubectl ws explain

  # Why can alice not delete secrets there?
  kubectl ws explain team delete secrets --for alice`,
		ValidArgsFunction: a.complete,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 && len(args) != 3 {
				return errors.New("neither a workspace alone nor with a verb and a resource")
			}
			return nil
		},
	}
	outputFlag(cmd, &f)
	cmd.Flags().StringVar(&q.user, "for", "", "tell of this user instead of yourself")
	cmd.Flags().StringArrayVar(&q.groups, "for-group", nil, "group that the user is in; may be given several times")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 3 {
			q.verb, q.resource, args = args[1], args[2], args[:1]
		}
		q.namespace = *a.flags.Namespace
		_, srv, err := a.openAt(cmd.Context(), args)
		if err != nil {
			return err
		}
		facts, err := srv.investigate(cmd.Context(), q)
		if err != nil {
			return err
		}
		e := facts.explain()
		if facts.remark != "" {
			a.print.note("%s", facts.remark)
		}
		if f != "" {
			return a.print.result(f, e, e.Path)
		}
		a.print.explanation(e)
		return nil
	}
	return cmd
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

	// Access is how the server decides, step by step.
	Access *tenancy.AccessExplanation `json:"access,omitempty"`
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
	if f.told != nil {
		e.Phase, e.Cluster, e.Access = f.told.Phase, f.told.Cluster, &f.told.Access
		e.User, e.Groups = e.Access.User, e.Access.Groups
		state.obstacles(f.told)
	} else if f.object == nil && f.cluster == nil {
		e.Problems = append(e.Problems, f.hidden())
		return e
	}
	e.Problems = append(e.Problems, state.problems(e.Phase)...)
	if e.Access != nil && !e.Access.Allowed {
		e.Problems = append(e.Problems, problem{fmt.Sprintf("User %s may not %s.", e.Access.User, inWords(e.Access.Request)), sentence(e.Access.Message) + "."})
	} else if apierrors.IsForbidden(f.reach) && e.Phase != core.PhaseInactive && e.Access == nil {
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

// obstacles adds what the server says of them.
func (s *state) obstacles(told *tenancy.WorkspaceExplanation) {
	s.deleted = s.deleted || told.Deleting
	for _, o := range told.Obstacles {
		switch o.Type {
		case "Initializer":
			s.initializers = with(s.initializers, core.Initializer(o.Name))
		case "Terminator":
			s.terminators = with(s.terminators, core.Terminator(o.Name))
		case "Finalizer":
			s.finalizers = with(s.finalizers, o.Name)
		default:
			s.condition(conditions.Condition{Type: conditions.Type(o.Type), Status: metav1.ConditionFalse, Reason: o.Name, Message: o.Message})
		}
	}
}

// with returns all and one more, unless it is among them.
func with[T comparable](all []T, one T) []T {
	if slices.Contains(all, one) {
		return all
	}
	return append(all, one)
}

func (s *state) condition(c conditions.Condition) {
	known := slices.ContainsFunc(s.conditions, func(o conditions.Condition) bool { return o.Type == c.Type })
	if c.Status != metav1.ConditionTrue && !known {
		s.conditions = append(s.conditions, c)
	}
}

func (s *state) add(o metav1.ObjectMeta, all conditions.Conditions) {
	s.deleted = s.deleted || o.DeletionTimestamp != nil
	for _, name := range o.Finalizers {
		if !slices.Contains(systemFinalizers(), name) {
			s.finalizers = with(s.finalizers, name)
		}
	}
	for _, c := range all {
		s.condition(c)
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
		{"URL:", e.URL}, {"Owner:", e.Owner}, {"User:", e.User}, {"Groups:", strings.Join(e.Groups, ", ")}, {"You may:", strings.Join(e.Rights, ", ")},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	p.table(rows)
	if e.Access != nil && (!e.Access.Allowed || e.Access.Request != entering) {
		p.decision(e.Access)
	}
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

// entering is the request that is asked about if none is given.
const entering = "access /"

func inWords(request string) string {
	if request == entering {
		return "enter it"
	}
	return request
}

// decision prints how a request is decided.
func (p *printer) decision(a *tenancy.AccessExplanation) {
	p.say("\nHow it is decided whether user %s may %s:", a.User, inWords(a.Request))
	var rows [][]string
	for _, step := range a.Steps {
		rows = append(rows, []string{"  " + step.Name, step.Decision, step.Reason})
	}
	p.table(rows)
	if a.Allowed {
		p.say("User %s may.", a.User)
	}
}
