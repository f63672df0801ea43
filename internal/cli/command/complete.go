package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// completeWithin is the timeout of a completion.
const completeWithin = 5 * time.Second

// pathDirective keeps the shell from adding a space after a word: a path may go on.
const pathDirective = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace

// Complete completes the argument of a command that takes one workspace.
func (a *App) Complete(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.CompletePath(cmd, args, text)
}

// CompletePath completes the last word of a workspace path. Errors end in no completions,
// not in a message: the user is typing a command.
func (a *App) CompletePath(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	_, srv, err := a.Open(ctx)
	if err != nil {
		return nil, pathDirective
	}
	before, at := "", srv.Base.Path
	if i := strings.LastIndexByte(text, ':'); i == 0 {
		return []string{":" + string(cluster.Root)}, pathDirective
	} else if i > 0 {
		before = text[:i+1]
		if at, err = a.seek(ctx, srv, text[:i]); err != nil {
			return nil, pathDirective
		}
	}
	children, err := srv.List(ctx, at)
	if err != nil {
		return nil, pathDirective
	}
	var names []string
	for _, w := range children {
		if name := before + w.Name; strings.HasPrefix(name, text) {
			names = append(names, name)
		}
	}
	return names, pathDirective
}

// CompleteType completes a workspace type: one in the current workspace by its name, one in
// the root by path and name.
func (a *App) CompleteType(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	_, srv, err := a.Open(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, from := range []struct {
		path   cluster.Path
		before string
	}{{srv.Base.Path, ""}, {cluster.Path(cluster.Root), string(cluster.Root) + ":"}} {
		types, err := srv.Objects(from.path, tenancy.GroupVersion, "workspacetypes")
		if err != nil {
			continue
		}
		all, err := types.List(ctx, metav1.ListOptions{Limit: remote.PageSize})
		if err != nil {
			continue
		}
		for _, t := range all.Items {
			if name := from.before + t.GetName(); strings.HasPrefix(name, text) {
				names = append(names, name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// CompleteExport completes a reference to an export: its name in the current workspace, or the
// path of its workspace and its name.
func (a *App) CompleteExport(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	_, srv, err := a.Open(ctx)
	if err != nil {
		return nil, pathDirective
	}
	before, at := text[:strings.LastIndexByte(text, ':')+1], srv.Base.Path
	words := []string{string(cluster.Root) + ":"}
	if before != "" {
		var ok bool
		if at, _, ok = paths.ParseReference(at, before+"any"); !ok {
			return nil, pathDirective
		}
		words = nil
		children, _ := srv.List(ctx, at) // the user may still list exports
		for _, w := range children {
			words = append(words, w.Name+":")
		}
	}
	words = append(words, namesOf(ctx, srv, at, "apiexports")...)
	var names []string
	for _, word := range words {
		if name := before + word; strings.HasPrefix(name, text) {
			names = append(names, name)
		}
	}
	return names, pathDirective
}

// CompleteBinding completes the name of an APIBinding of the current workspace.
func (a *App) CompleteBinding(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	var names []string
	if _, srv, err := a.Open(ctx); err == nil {
		names = namesOf(ctx, srv, srv.Base.Path, "apibindings")
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, text) }), cobra.ShellCompDirectiveNoFileComp
}

// namesOf returns the names of the first objects of a resource, none if the user may not list them.
func namesOf(ctx context.Context, srv *remote.Server, at cluster.Path, resource string) (names []string) {
	objects, err := srv.Objects(at, apis.GroupVersion, resource)
	if err != nil {
		return nil
	}
	all, err := objects.List(ctx, metav1.ListOptions{Limit: remote.PageSize})
	if err != nil {
		return nil
	}
	for _, o := range all.Items {
		names = append(names, o.GetName())
	}
	return names
}

// CompleteContext completes the name of a context of the kubeconfig.
func (a *App) CompleteContext(_ *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	config, err := a.Flags.ToRawKubeConfigLoader().ConfigAccess().GetStartingConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for name := range config.Contexts {
		if strings.HasPrefix(name, text) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
