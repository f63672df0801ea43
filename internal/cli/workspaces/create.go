package workspaces

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/kubeconfig"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// CreateWorkspace returns the command "kubectl create workspace".
func CreateWorkspace(streams genericiooptions.IOStreams) *cobra.Command {
	a := command.New(streams)
	cmd := createCommand(a, "workspace NAME", "kubectl create workspace")
	cmd.Aliases = []string{"ws"}
	return a.Program(cmd)
}

// A creation holds the flags of create.
type creation struct {
	typ            string
	selector       string
	context        string
	enter          bool
	ignoreExisting bool
	format         output.Format
}

func createCommand(a *command.App, use, called string) *cobra.Command {
	var c creation
	cmd := &cobra.Command{
		Use:   use,
		Short: "Create a workspace in the current one, or in another one",
		Long:  "Create a workspace in the current one, or in the one that an absolute path names, and wait for up to a minute until it is ready.",
		Example: strings.ReplaceAll(`  # Create a workspace of the default type
  <called> team

  # Create a workspace of another type, and enter it
  <called> team --type root:universal --enter

  # Create a workspace in the workspace root:org
  <called> :root:org:team

  # Create a workspace unless it exists, in a script
  <called> team --ignore-existing

  # Print the new object as YAML; messages go to standard error
  <called> team -o yaml`, "<called>", called),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return makeWorkspace(cmd.Context(), a, args[0], c) },
	}
	flags := cmd.Flags()
	flags.StringVar(&c.typ, "type", "", "Type of the workspace: the name of a type here or above, or the path of its workspace and the name, as in root:universal. (default the default child type of the current workspace)")
	flags.BoolVar(&c.enter, "enter", false, "Enter the workspace when it is ready.")
	flags.BoolVar(&c.ignoreExisting, "ignore-existing", false, "Succeed if the workspace exists already. --type must then have a path.")
	flags.StringVar(&c.context, "create-context", "", "Name of a context for the workspace to add to the kubeconfig.")
	flags.StringVar(&c.selector, "location-selector", "", "Label selector for the shards on which the workspace may be.")
	output.CompleteFlag(cmd, "type", a.CompleteType)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	output.Flag(cmd, &c.format, output.ObjectFormats())
	return cmd
}

func makeWorkspace(ctx context.Context, a *command.App, name string, c creation) error {
	s, srv, err := a.Open(ctx)
	if err != nil {
		return err
	}
	if i := strings.LastIndexByte(name, ':'); i > 0 && name[0] == ':' { // an absolute path
		up, err := a.Locate(ctx, srv, name[:i])
		if err != nil {
			return err
		}
		s.Here, name = s.Here.At(up), name[i+1:]
		srv.Base = s.Here
	}
	wanted, err := c.workspace(s.Here.Path, name)
	if err != nil {
		return err
	}
	if err := c.free(s, s.Here.At(s.Here.Path.Join(name))); err != nil {
		return err
	}
	w, err := srv.Create(ctx, s.Here.Path, wanted)
	existed := apierrors.IsAlreadyExists(err)
	if existed && c.ignoreExisting {
		if w, err = srv.Get(ctx, s.Here.Path, name); err == nil {
			err = sameType(w, wanted)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot create workspace %q in %q: %w", name, s.Here.Path, err)
	}
	called, p := describe(w), a.Print.Aside(c.format)
	if existed {
		a.Print.Note("%s already exists.", called)
	} else {
		p.Say("%s created. Waiting for it to be ready...", called)
	}
	if w, err = AwaitReady(ctx, a, srv, s.Here.Path, w); err != nil {
		return fmt.Errorf("workspace %q was created, but is not ready: %w", name, err)
	}
	p.Say("%s is ready to use.", called)
	if c.format != "" {
		if err := a.Print.Result(c.format, w, objectName(w)); err != nil {
			return err
		}
	}
	return settle(ctx, a, s, w, c)
}

// settle makes the changes to the kubeconfig that the flags ask for, once w is ready.
func settle(ctx context.Context, a *command.App, s *kubeconfig.Session, w *tenancy.Workspace, c creation) error {
	to, p := s.Here.At(s.Here.Path.Join(w.Name)), a.Print.Aside(c.format)
	if c.context != "" {
		if _, err := s.CreateContext(ctx, c.context, to, kubeconfig.Replace); err != nil {
			return err
		}
		p.Say("Created context %q.", c.context)
	}
	if !c.enter {
		return nil
	}
	if err := s.Enter(ctx, to); err != nil {
		return err
	}
	p.CurrentWorkspace(to.Path, remote.TypeName(w), false)
	return nil
}

// free returns an error if --create-context would replace a context for another workspace.
func (c creation) free(s *kubeconfig.Session, to kubeconfig.Place) error {
	config, err := s.Access.GetStartingConfig()
	if err != nil || c.context == "" {
		return err
	}
	entry, exists := config.Contexts[c.context]
	cl, taken := config.Clusters[c.context]
	if exists && entry.Cluster != c.context || taken && cl.Server != to.URL() {
		return fmt.Errorf("the kubeconfig has a context %q for something else; choose another name for --create-context", c.context)
	}
	return nil
}

// workspace returns the object to create in the workspace at here.
func (c creation) workspace(here cluster.Path, name string) (*tenancy.Workspace, error) {
	if _, err := paths.Step(here, name); err != nil || paths.IsDots(name) || strings.Contains(name, ":") {
		return nil, paths.InvalidName(name)
	}
	w := &tenancy.Workspace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tenancy.kcp.io/v1alpha1", Kind: "Workspace"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	typ, err := parseType(here, c.typ)
	if err != nil {
		return nil, err
	}
	if w.Spec.Type = typ; typ != nil && typ.Path == "" && c.ignoreExisting {
		return nil, fmt.Errorf("--ignore-existing needs a --type with a path, as in root:%s, or no --type: a name alone depends on the current workspace", typ.Name)
	}
	if c.selector != "" {
		selector, err := metav1.ParseToLabelSelector(c.selector)
		if err != nil {
			return nil, fmt.Errorf("invalid --location-selector: %w", err)
		}
		w.Spec.Location = &tenancy.WorkspaceLocation{Selector: selector}
	}
	return w, nil
}

// parseType parses the value of --type in the workspace at here: a name, which the server
// resolves, or a path and a name.
func parseType(here cluster.Path, text string) (*tenancy.WorkspaceTypeReference, error) {
	if text == "" {
		return nil, nil
	}
	path, name, ok := paths.ParseReference(here, text)
	if !ok {
		return nil, fmt.Errorf("invalid --type %q: it must be [path:]name, as in root:universal", text)
	}
	return &tenancy.WorkspaceTypeReference{Path: string(path), Name: name}, nil
}

// sameType returns an error if w and wanted differ in their type.
func sameType(w, wanted *tenancy.Workspace) error {
	if wanted.Spec.Type != nil && remote.TypeName(w) != remote.TypeName(wanted) {
		return fmt.Errorf("it already exists with type %s, not %s; delete it first or omit --type", output.OrDash(remote.TypeName(w)), remote.TypeName(wanted))
	}
	return nil
}

// AwaitReady waits until w is ready, and returns it.
func AwaitReady(ctx context.Context, a *command.App, srv *remote.Server, path cluster.Path, w *tenancy.Workspace) (*tenancy.Workspace, error) {
	limited, cancel := context.WithTimeout(ctx, a.Ready)
	defer cancel()
	said := ""
	err := srv.Follow(limited, path, w, func(now *tenancy.Workspace) (bool, error) {
		w = now
		if left := pending(now); left != "" && left != said {
			said = left
			a.Print.Note("%s", left)
		}
		switch now.Status.Phase {
		case core.PhaseReady:
			return true, nil
		case core.PhaseTerminating, core.PhaseDeleting:
			return false, errors.New("it is being deleted")
		}
		return false, nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && limited.Err() != nil:
		return nil, fmt.Errorf("timed out after %s%s; to watch it, run: kubectl get workspace %s --watch", a.Ready, remote.Reason(w), w.Name)
	}
	return w, err
}

// pending returns a message about the shard or the initializers that w waits for, or nothing.
func pending(w *tenancy.Workspace) string {
	if c := w.Status.Conditions.Get(tenancy.WorkspaceScheduled); w.Status.Phase == core.PhaseScheduling && c != nil && c.Reason == tenancy.Unschedulable {
		return "Waiting for a shard. " + c.Message
	}
	if w.Status.Phase != core.PhaseInitializing || len(w.Status.Initializers) == 0 {
		return ""
	}
	var left []string
	for _, i := range w.Status.Initializers {
		left = append(left, string(i))
	}
	return "Waiting for initializers: " + strings.Join(left, ", ")
}

func describe(w *tenancy.Workspace) string {
	if typ := remote.TypeName(w); typ != "" {
		return fmt.Sprintf("Workspace %q (type %s)", w.Name, typ)
	}
	return fmt.Sprintf("Workspace %q", w.Name)
}
