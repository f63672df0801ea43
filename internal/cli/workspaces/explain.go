package workspaces

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
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
)

func explainCommand(a *command.App) *cobra.Command {
	var f output.Format
	var q inquiry
	cmd := &cobra.Command{
		Use:   "explain [WORKSPACE [VERB RESOURCE]]",
		Short: "Explain the state of a workspace and what you may do in it",
		Long:  "Print what a workspace is, what you may do in it, and its problems: why it is not ready, why its deletion does not end, why you may not enter it, and what to do about that. With a verb and a resource, print how such a request is authorized. The output contains only what you may read, so other users may see more.",
		Example: `  # Find out why you cannot enter a workspace
  kubectl ws explain :root:org:team

  # Describe the current workspace and your permissions in it
  kubectl ws explain

  # Find out why alice may not delete secrets in a workspace
  kubectl ws explain team delete secrets --for alice`,
		ValidArgsFunction: a.Complete,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 && len(args) != 3 {
				return errors.New("a verb needs a resource")
			}
			return nil
		},
	}
	output.Flag(cmd, &f, output.ObjectFormats())
	cmd.Flags().StringVar(&q.user, "for", "", "Explain the access of this user instead of your own.")
	cmd.Flags().StringArrayVar(&q.groups, "for-group", nil, "Group of that user. Can be given several times.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 3 {
			q.verb, q.resource, args = args[1], args[2], args[:1]
		}
		q.namespace = *a.Flags.Namespace
		_, srv, err := openAt(cmd.Context(), a, args)
		if err != nil {
			return err
		}
		facts, err := investigate(cmd.Context(), srv, q)
		if other := *a.Flags.Impersonate; apierrors.IsForbidden(err) && other != "" && q.user == "" {
			return fmt.Errorf("%w\nto explain the access of another user, use --for %s instead of --as", err, other)
		}
		if err != nil {
			return err
		}
		e := facts.explain()
		if facts.remark != "" {
			a.Print.Note("%s", facts.remark)
		}
		if f != "" {
			return a.Print.Result(f, e, e.Path)
		}
		printExplanation(a.Print, e)
		return nil
	}
	return cmd
}

// An explanation is the result of "kubectl ws explain".
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

	// Access is the server's decision, step by step.
	Access *tenancy.AccessExplanation `json:"access,omitempty"`
}

// A problem is a reason why a workspace is not usable, and what to do about it.
type problem struct {
	What string `json:"what"`
	Fix  string `json:"fix,omitempty"`
}

// explain returns what the facts mean for the user.
func (f *facts) explain() explanation {
	e := explanation{Path: string(f.at.Path), URL: f.at.URL(), Rights: f.rights}
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
		e.Type, e.Cluster, e.Phase = remote.TypeName(w), w.Spec.Cluster, w.Status.Phase
		e.Owner = owner(w.Annotations)
		state.mount = w.Spec.Mount
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
	switch {
	case e.Access != nil && !e.Access.Allowed:
		e.Problems = append(e.Problems, problem{fmt.Sprintf("User %s may not %s.", e.Access.User, inWords(e.Access.Request)), output.Sentence(e.Access.Message) + "."})
	case apierrors.IsForbidden(f.reach) && e.Phase != core.PhaseInactive && e.Access == nil:
		e.Problems = append(e.Problems, problem{"You may not enter it: " + f.reach.Error(), f.ask()})
	case f.reach != nil && !apierrors.IsForbidden(f.reach) && e.Phase == core.PhaseReady:
		e.Problems = append(e.Problems, problem{"It does not answer requests: " + f.reach.Error(), state.repair()})
	}
	return e
}

// owner returns the name of the user who created a workspace.
func owner(annotations map[string]string) string {
	var user authenticationv1.UserInfo
	if json.Unmarshal([]byte(annotations[tenancy.OwnerAnnotation]), &user) != nil {
		return ""
	}
	return user.Username
}

// hidden returns why nothing is known about the workspace.
func (f *facts) hidden() problem {
	switch {
	case f.reach == nil:
		return problem{"You may enter it, but you may read neither its Workspace nor its LogicalCluster.", ""}
	case apierrors.IsNotFound(f.reach), apierrors.IsNotFound(f.lookup):
		return problem{"There is no such workspace.", "To see which workspaces there are, run: kubectl ws tree :"}
	case apierrors.IsForbidden(f.reach):
		return problem{"You may not enter it, or it does not exist: " + f.reach.Error(), f.ask()}
	default:
		return problem{f.reach.Error(), ""}
	}
}

// ask returns the advice for a user who may not enter the workspace.
func (f *facts) ask() string {
	name := "USER"
	if f.user != nil {
		name = f.user.Username
	}
	if name == command.Anonymous {
		return "You are not logged in: check the user of your context with kubectl config view --minify"
	}
	return fmt.Sprintf("Ask an administrator of the workspace to run: kubectl ws share %s --role view -w :%s", output.ShellWord(name), f.at.Path)
}

// A state is the state that a Workspace and its LogicalCluster report.
type state struct {
	mount        *tenancy.Mount // nil if kcp itself serves the workspace
	deleted      bool
	finalizers   []string
	conditions   conditions.Conditions
	initializers []core.Initializer
	terminators  []core.Terminator
}

// systemFinalizers are the finalizers that kcp itself removes, once the content is gone.
func systemFinalizers() []string {
	return []string{core.LogicalClusterFinalizer, core.DeletionFinalizer, core.TerminatorsFinalizer}
}

// obstacles adds the obstacles that the server reports.
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

// with appends one to all unless all contains it.
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

// problems returns why a workspace stays in its phase, if that is not Ready.
func (s *state) problems(phase core.Phase) (all []problem) {
	say := func(fix, format string, args ...any) { all = append(all, problem{fmt.Sprintf(format, args...), fix}) }
	const controller = "Check that its controller is running. The controller removes the %s when it has finished."
	switch phase {
	case core.PhaseScheduling, "":
		say("", "It has no shard yet.")
	case core.PhaseInitializing:
		for _, i := range s.initializers {
			say(fmt.Sprintf(controller, "initializer"), "Initializer %s has not finished.", i)
		}
	case core.PhaseInactive:
		say("Ask an operator to remove the annotation "+core.InactiveAnnotation+" from its LogicalCluster.", "An operator has taken it offline.")
	case core.PhaseUnavailable:
		if s.mount != nil {
			say(s.repair(), "It is mounted from %s %s, which is not ready.", s.mount.Reference.Kind, s.mount.Reference.Name)
		} else {
			say("", "It is temporarily unavailable.")
		}
	case core.PhaseTerminating, core.PhaseDeleting:
		for _, t := range s.terminators {
			say(fmt.Sprintf(controller, "terminator"), "Terminator %s has not finished.", t)
		}
	}
	if s.deleted {
		for _, name := range s.finalizers {
			say(fmt.Sprintf(controller, "finalizer"), "Finalizer %s blocks its deletion.", name)
		}
	}
	for _, c := range s.conditions {
		if s.deleted || c.Type != core.WorkspaceContentDeleted {
			say("", "Condition %s is %s: %s", c.Type, c.Status, strings.Join(slices.DeleteFunc([]string{c.Reason, c.Message}, func(s string) bool { return s == "" }), ": "))
		}
	}
	return all
}

// repair returns what to do about a mounted workspace that does not answer.
func (s *state) repair() string {
	if s.mount == nil {
		return ""
	}
	ref := s.mount.Reference
	namespace := ""
	if ref.Namespace != "" {
		namespace = " -n " + output.ShellWord(ref.Namespace)
	}
	return fmt.Sprintf("Check the status of %s %s and the server at its URL. In the parent workspace, run: kubectl get %s %s%s -o yaml",
		ref.Kind, ref.Name, output.ShellWord(strings.ToLower(ref.Kind)), output.ShellWord(ref.Name), namespace)
}

func printExplanation(p *output.Printer, e explanation) {
	var rows [][]string
	for _, row := range [][]string{
		{"Workspace:", e.Path}, {"Type:", e.Type}, {"Phase:", string(e.Phase)}, {"Cluster:", e.Cluster},
		{"URL:", e.URL}, {"Owner:", e.Owner}, {"User:", e.User}, {"Groups:", strings.Join(e.Groups, ", ")}, {"You may:", strings.Join(e.Rights, ", ")},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	p.Table(rows)
	if e.Access != nil && (!e.Access.Allowed || e.Access.Request != entering) {
		printDecision(p, e.Access)
	}
	if len(e.Problems) == 0 {
		p.Say("No problems found.")
	}
	for _, problem := range e.Problems {
		p.Say("\n%s", problem.What)
		if problem.Fix != "" {
			p.Say("  %s", problem.Fix)
		}
	}
}

// entering is the request that the server explains by default.
const entering = "access /"

func inWords(request string) string {
	if request == entering {
		return "enter it"
	}
	return request
}

// printDecision prints the steps of an access decision.
func printDecision(p *output.Printer, a *tenancy.AccessExplanation) {
	p.Say("\nSteps of the decision whether user %s may %s:", a.User, inWords(a.Request))
	var rows [][]string
	for _, step := range a.Steps {
		rows = append(rows, []string{"  " + step.Name, step.Decision, step.Reason})
	}
	p.Table(rows)
	if a.Allowed {
		p.Say("User %s may %s.", a.User, inWords(a.Request))
	}
}
