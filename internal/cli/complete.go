package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// completeWithin is the timeout of a completion.
const completeWithin = 5 * time.Second

// pathDirective keeps the shell from adding a space after a word: a path may go on.
const pathDirective = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace

// complete completes the argument of a command that takes one workspace.
func (a *app) complete(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completePath(cmd, args, text)
}

// completePath completes the last word of a workspace path. Errors end in no completions,
// not in a message: the user is typing a command.
func (a *app) completePath(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	_, srv, err := a.open(ctx)
	if err != nil {
		return nil, pathDirective
	}
	before, at := "", srv.base.path
	if i := strings.LastIndexByte(text, ':'); i == 0 {
		return []string{":" + string(cluster.Root)}, pathDirective
	} else if i > 0 {
		before = text[:i+1]
		if at, err = a.seek(ctx, srv, text[:i]); err != nil {
			return nil, pathDirective
		}
	}
	children, err := srv.list(ctx, at)
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

// completeType completes a workspace type: one in the current workspace by its name, one in
// the root by path and name.
func (a *app) completeType(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	_, srv, err := a.open(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, from := range []struct {
		path   cluster.Path
		before string
	}{{srv.base.path, ""}, {cluster.Path(cluster.Root), string(cluster.Root) + ":"}} {
		types, err := srv.objects(from.path, tenancy.GroupVersion, "workspacetypes")
		if err != nil {
			continue
		}
		all, err := types.List(ctx, metav1.ListOptions{Limit: pageSize})
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

// completeExport completes a reference to an export: its name in the current workspace, or the
// path of its workspace and its name.
func (a *app) completeExport(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	_, srv, err := a.open(ctx)
	if err != nil {
		return nil, pathDirective
	}
	before, at := text[:strings.LastIndexByte(text, ':')+1], srv.base.path
	words := []string{string(cluster.Root) + ":"}
	if before != "" {
		var ok bool
		if at, _, ok = parseReference(at, before+"any"); !ok {
			return nil, pathDirective
		}
		words = nil
		children, _ := srv.list(ctx, at) // the user may still list exports
		for _, w := range children {
			words = append(words, w.Name+":")
		}
	}
	if exports, err := srv.objects(at, apis.GroupVersion, "apiexports"); err == nil {
		if all, err := exports.List(ctx, metav1.ListOptions{Limit: pageSize}); err == nil {
			for _, e := range all.Items {
				words = append(words, e.GetName())
			}
		}
	}
	var names []string
	for _, word := range words {
		if name := before + word; strings.HasPrefix(name, text) {
			names = append(names, name)
		}
	}
	return names, pathDirective
}

// completeContext completes the name of a context of the kubeconfig.
func (a *app) completeContext(_ *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	config, err := a.flags.ToRawKubeConfigLoader().ConfigAccess().GetStartingConfig()
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
