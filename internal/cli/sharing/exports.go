package sharing

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// ExportsCommand returns the command "kubectl kcp exports".
func ExportsCommand(a *command.App) *cobra.Command {
	var f output.Format
	cmd := &cobra.Command{
		Use:     "exports [WORD]",
		Aliases: []string{"export", "catalogue", "catalog"},
		Short:   "List the APIs that you may bind",
		Long: `List the APIExports that you may bind, in all workspaces, and which of them the current workspace binds. With a word, list those with the word in their path, name, description or resources.

A provider describes an APIExport with the annotation ` + apis.DescriptionAnnotation + `.`,
		Example: `  # List the APIs that you may bind
  kubectl kcp exports

  # List those about certificates, with their claims and full descriptions
  kubectl kcp exports certificates -o wide`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	output.Flag(cmd, &f, output.TableFormats())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, srv, err := a.Open(cmd.Context())
		if err != nil {
			return err
		}
		all, err := bindableExports(cmd.Context(), srv)
		if err != nil {
			return fmt.Errorf("cannot list the exports that you may bind: %w", err)
		}
		if len(args) > 0 {
			some := len(all) > 0
			all = slices.DeleteFunc(all, func(e apis.BindableExport) bool { return !mentions(e, args[0]) })
			if some && len(all) == 0 && !f.Encoded() {
				a.Print.Note("No export that you may bind has the word %q. To list all, run: kubectl kcp exports", args[0])
				return nil
			}
		}
		return printExports(cmd.Context(), a, srv, f, all)
	}
	return cmd
}

// bindableExports returns all exports that the user may bind.
func bindableExports(ctx context.Context, s *remote.Server) ([]apis.BindableExport, error) {
	all := []apis.BindableExport{}
	for next := ""; ; {
		query := url.Values{}
		if next != "" {
			query.Set("continue", next)
		}
		var page apis.BindableExportList
		if err := s.Ask(ctx, remote.ExportsService, query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
}

// mentions reports whether a part of an export has a word.
func mentions(e apis.BindableExport, word string) bool {
	text := strings.Join(append(resourceTexts(e), e.Path, e.Name, e.Description), "\n")
	return strings.Contains(strings.ToLower(text), strings.ToLower(word))
}

func resourceTexts(e apis.BindableExport) []string {
	var all []string
	for _, r := range e.Resources {
		text := schema.GroupResource{Group: r.Group, Resource: r.Resource}.String()
		if len(r.Versions) > 0 {
			text += " (" + strings.Join(r.Versions, ", ") + ")"
		}
		all = append(all, text)
	}
	return all
}

func printExports(ctx context.Context, a *command.App, srv *remote.Server, f output.Format, all []apis.BindableExport) error {
	reference := func(e apis.BindableExport) string { return e.Path + ":" + e.Name }
	var names []string
	for _, e := range all {
		names = append(names, reference(e))
	}
	switch {
	case f == output.Name:
		for _, name := range names {
			a.Print.Say("%s", name)
		}
		return nil
	case f.Encoded():
		list := apis.BindableExportList{TypeMeta: metav1.TypeMeta{APIVersion: apis.GroupVersion.String(), Kind: "BindableExportList"}, Items: all}
		return a.Print.Result(f, list, names...)
	case len(all) == 0:
		a.Print.Note("There are no exports that you may bind. A provider gives the verb \"bind\" on apiexports.apis.kcp.io.")
		return nil
	}
	bound, err := boundExports(ctx, srv)
	if err != nil {
		a.Print.Note("Cannot read the APIBindings of workspace '%s': %v", srv.Base.Path, err)
	}
	rows := [][]string{{"EXPORT", "RESOURCES", "BOUND", "DESCRIPTION"}}
	if f == output.Wide {
		rows[0] = []string{"EXPORT", "RESOURCES", "BOUND", "CLAIMS", "CLUSTER", "DESCRIPTION"}
	}
	for _, e := range all {
		row := []string{reference(e), output.OrDash(strings.Join(resourceTexts(e), ", ")), output.OrDash(bound[e.Cluster+"/"+e.Name]), shortened(e.Description)}
		if f == output.Wide {
			row = []string{row[0], row[1], row[2], output.OrDash(strings.Join(e.PermissionClaims, ", ")), e.Cluster, output.OrDash(e.Description)}
		}
		rows = append(rows, row)
	}
	a.Print.Table(rows)
	a.Print.Note("To use one in workspace '%s', run: kubectl kcp bind apiexport EXPORT", srv.Base.Path)
	return nil
}

// boundExports returns the APIBindings of the current workspace by their export, as
// <cluster>/<name>.
func boundExports(ctx context.Context, s *remote.Server) (map[string]string, error) {
	bindings, err := s.Objects(s.Base.Path, apis.GroupVersion, "apibindings")
	if err != nil {
		return nil, err
	}
	list, err := bindings.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for i := range list.Items {
		b, err := BindingOf(&list.Items[i])
		if err != nil {
			return nil, err
		}
		if ref := b.Spec.Reference.Export; ref != nil && b.Status.APIExportClusterName != "" {
			all[b.Status.APIExportClusterName+"/"+ref.Name] = b.Name
		}
	}
	return all, nil
}

// shortened returns the first line of a text, and at most 60 characters of it.
func shortened(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if runes := []rune(line); len(runes) > 60 {
		line = strings.TrimSpace(string(runes[:59])) + "…"
	}
	return output.OrDash(line)
}

// openExport starts a session, and returns the path of the workspace and the name of the export that
// ref names. Without a path, that is the current workspace.
func openExport(ctx context.Context, a *command.App, ref string) (srv *remote.Server, path cluster.Path, name string, err error) {
	if _, srv, err = a.Open(ctx); err != nil {
		return nil, "", "", err
	}
	path, name, ok := paths.ParseReference(srv.Base.Path, ref)
	if !ok {
		return nil, "", "", invalidExport(ref)
	}
	return srv, cmp.Or(path, srv.Base.Path), name, nil
}

func invalidExport(ref string) error {
	return fmt.Errorf("invalid export %q: it must be [path:]name, as in root:provider:widgets", ref)
}
