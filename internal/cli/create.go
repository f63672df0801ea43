package cli

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
	"github.com/unforked/kcp/internal/cluster"
)

// CreateWorkspace returns the command "kubectl create workspace".
func CreateWorkspace(streams genericiooptions.IOStreams) *cobra.Command {
	a := newApp(streams)
	cmd := a.createCommand("workspace <name>", "kubectl create workspace")
	cmd.Aliases = []string{"ws"}
	return a.program(cmd)
}

// A creation is what the user asks for besides a name.
type creation struct {
	typ            string
	selector       string
	context        string
	enter          bool
	ignoreExisting bool
	format         format
}

func (a *app) createCommand(use, called string) *cobra.Command {
	var c creation
	cmd := &cobra.Command{
		Use:   use,
		Short: "Create a workspace in the current one",
		Long:  "Create a workspace in the current one, and wait for up to a minute until it is ready to use.",
		Example: strings.ReplaceAll(`  # Create a workspace of the type that is usual here
  <called> team

  # Create a workspace of a certain type, and go there
  <called> team --type root:universal --enter

  # Make sure that a workspace exists, for scripts
  <called> team --ignore-existing

  # The object that was created, for programs; what is said beside it goes to standard error
  <called> team -o yaml`, "<called>", called),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.create(cmd.Context(), args[0], c) },
	}
	flags := cmd.Flags()
	flags.StringVar(&c.typ, "type", "", "type of the workspace, as a name or with the path of the workspace that has the type, as in root:universal; what is usual here if not given")
	flags.BoolVar(&c.enter, "enter", false, "go to the workspace once it is ready")
	flags.BoolVar(&c.ignoreExisting, "ignore-existing", false, "it is no error if there is such a workspace already; a --type must be absolute then")
	flags.StringVar(&c.context, "create-context", "", "add a context of this name for the workspace to the kubeconfig")
	flags.StringVar(&c.selector, "location-selector", "", "labels of the shards that the workspace may be on")
	completeFlag(cmd, "type", a.completeType)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	outputFlag(cmd, &c.format)
	return cmd
}

func (a *app) create(ctx context.Context, name string, c creation) error {
	s, srv, err := a.open(ctx)
	if err != nil {
		return err
	}
	wanted, err := c.workspace(s.here.path, name)
	if err != nil {
		return err
	}
	if err := c.free(s, s.here.at(s.here.path.Join(name))); err != nil {
		return err
	}
	w, err := srv.create(ctx, s.here.path, wanted)
	existed := apierrors.IsAlreadyExists(err)
	if existed && c.ignoreExisting {
		if w, err = srv.get(ctx, s.here.path, name); err == nil {
			err = sameType(w, wanted)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot create workspace %q in %q: %w", name, s.here.path, err)
	}
	called, p := describe(w), a.print.aside(c.format)
	if existed {
		a.print.note("%s already exists.", called)
	} else {
		p.say("%s created. Waiting for it to be ready...", called)
	}
	if w, err = a.await(ctx, srv, s.here.path, w); err != nil {
		return fmt.Errorf("workspace %q does not become ready: %w", name, err)
	}
	p.say("%s is ready to use.", called)
	if c.format != "" {
		if err := a.print.result(c.format, w, objectName(w)); err != nil {
			return err
		}
	}
	return a.settle(ctx, s, w, c)
}

// settle leaves the kubeconfig as the user wants it once w is ready.
func (a *app) settle(ctx context.Context, s *session, w *tenancy.Workspace, c creation) error {
	to, p := s.here.at(s.here.path.Join(w.Name)), a.print.aside(c.format)
	if c.context != "" {
		if _, err := s.createContext(ctx, c.context, to, replace); err != nil {
			return err
		}
		p.say("Created context %q.", c.context)
	}
	if !c.enter {
		return nil
	}
	if err := s.enter(ctx, to); err != nil {
		return err
	}
	p.current(to.path, typeName(w), false)
	return nil
}

// free returns an error if the context to create would replace one that leads elsewhere.
func (c creation) free(s *session, to place) error {
	config, err := s.access.GetStartingConfig()
	if err != nil || c.context == "" {
		return err
	}
	entry, exists := config.Contexts[c.context]
	cl, taken := config.Clusters[c.context]
	if exists && entry.Cluster != c.context || taken && cl.Server != to.URL() {
		return fmt.Errorf("there is another context %q in the kubeconfig; choose another name for --create-context", c.context)
	}
	return nil
}

// workspace returns the object to create in the workspace at here.
func (c creation) workspace(here cluster.Path, name string) (*tenancy.Workspace, error) {
	if _, err := step(here, name); err != nil || isDots(name) || strings.Contains(name, ":") {
		return nil, badName(name)
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
		return nil, fmt.Errorf("--ignore-existing needs an absolute --type, as in root:%s, or none: which type %[1]q is depends on where it is looked for", typ.Name)
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

// parseType returns the type that text names to somebody at here: a name, which
// the server looks for, or a path and a name.
func parseType(here cluster.Path, text string) (*tenancy.WorkspaceTypeReference, error) {
	if text == "" {
		return nil, nil
	}
	i := strings.LastIndexByte(text, ':')
	name := text[i+1:]
	if name == "" {
		return nil, fmt.Errorf("invalid --type %q: it must be [path:]name, as in root:universal", text)
	}
	if i < 0 {
		return &tenancy.WorkspaceTypeReference{Name: name}, nil
	}
	path := text[:i]
	if first, _, _ := strings.Cut(path, ":"); !isDots(first) && first != "" {
		path = ":" + path
	}
	at, err := resolve(here, path)
	if i == 0 || err != nil {
		return nil, fmt.Errorf("invalid --type %q: it must be [path:]name, as in root:universal", text)
	}
	return &tenancy.WorkspaceTypeReference{Path: string(at), Name: name}, nil
}

// sameType returns an error if w has not the type that is wanted.
func sameType(w, wanted *tenancy.Workspace) error {
	if wanted.Spec.Type != nil && typeName(w) != typeName(wanted) {
		return fmt.Errorf("it already exists with type %s, not %s; delete it first or leave out --type", dash(typeName(w)), typeName(wanted))
	}
	return nil
}

// await returns w once it is ready.
func (a *app) await(ctx context.Context, srv *server, path cluster.Path, w *tenancy.Workspace) (*tenancy.Workspace, error) {
	limited, cancel := context.WithTimeout(ctx, a.ready)
	defer cancel()
	said := ""
	err := srv.follow(limited, path, w, func(now *tenancy.Workspace) (bool, error) {
		w = now
		if left := initializing(now); left != "" && left != said {
			said = left
			a.print.note("%s", left)
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
		return nil, fmt.Errorf("it is still not ready after %s%s; keep an eye on it: kubectl get workspace %s --watch", a.ready, reason(w), w.Name)
	}
	return w, err
}

// initializing returns what w waits for, if those are initializers.
func initializing(w *tenancy.Workspace) string {
	if w.Status.Phase != core.PhaseInitializing || len(w.Status.Initializers) == 0 {
		return ""
	}
	var left []string
	for _, i := range w.Status.Initializers {
		left = append(left, string(i))
	}
	return "Initializers left: " + strings.Join(left, ", ")
}

func describe(w *tenancy.Workspace) string {
	if typ := typeName(w); typ != "" {
		return fmt.Sprintf("Workspace %q (type %s)", w.Name, typ)
	}
	return fmt.Sprintf("Workspace %q", w.Name)
}
