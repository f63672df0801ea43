package cli

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
)

func (a *app) exportsCommand() *cobra.Command {
	var f format
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
	outputFlag(cmd, &f, tableFormats())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, srv, err := a.open(cmd.Context())
		if err != nil {
			return err
		}
		all, err := srv.bindable(cmd.Context())
		if err != nil {
			return fmt.Errorf("cannot list the exports that you may bind: %w", err)
		}
		if len(args) > 0 {
			all = slices.DeleteFunc(all, func(e apis.BindableExport) bool { return !mentions(e, args[0]) })
		}
		return a.printExports(cmd.Context(), srv, f, all)
	}
	return cmd
}

// bindable returns all exports that the user may bind.
func (s *server) bindable(ctx context.Context) ([]apis.BindableExport, error) {
	all := []apis.BindableExport{}
	for next := ""; ; {
		query := url.Values{}
		if next != "" {
			query.Set("continue", next)
		}
		var page apis.BindableExportList
		if err := s.ask(ctx, exportsService, query, &page); err != nil {
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

func (a *app) printExports(ctx context.Context, srv *server, f format, all []apis.BindableExport) error {
	reference := func(e apis.BindableExport) string { return e.Path + ":" + e.Name }
	var names []string
	for _, e := range all {
		names = append(names, reference(e))
	}
	switch {
	case f == asName:
		for _, name := range names {
			a.print.say("%s", name)
		}
		return nil
	case f.encoded():
		list := apis.BindableExportList{TypeMeta: metav1.TypeMeta{APIVersion: apis.GroupVersion.String(), Kind: "BindableExportList"}, Items: all}
		return a.print.result(f, list, names...)
	case len(all) == 0:
		a.print.note("There are no exports that you may bind. A provider gives the verb \"bind\" on apiexports.apis.kcp.io.")
		return nil
	}
	bound, err := srv.boundTo(ctx)
	if err != nil {
		a.print.note("Cannot read the APIBindings of workspace '%s': %v", srv.base.path, err)
	}
	rows := [][]string{{"EXPORT", "RESOURCES", "BOUND", "DESCRIPTION"}}
	if f == asWide {
		rows[0] = []string{"EXPORT", "RESOURCES", "BOUND", "CLAIMS", "CLUSTER", "DESCRIPTION"}
	}
	for _, e := range all {
		row := []string{reference(e), dash(strings.Join(resourceTexts(e), ", ")), dash(bound[e.Cluster+"/"+e.Name]), shortened(e.Description)}
		if f == asWide {
			row = []string{row[0], row[1], row[2], dash(strings.Join(e.PermissionClaims, ", ")), e.Cluster, dash(e.Description)}
		}
		rows = append(rows, row)
	}
	a.print.table(rows)
	a.print.note("To use one in workspace '%s', run: kubectl kcp bind apiexport EXPORT", srv.base.path)
	return nil
}

// boundTo returns the APIBindings of the current workspace by their export, as
// <cluster>/<name>.
func (s *server) boundTo(ctx context.Context) (map[string]string, error) {
	bindings, err := s.objects(s.base.path, apis.GroupVersion, "apibindings")
	if err != nil {
		return nil, err
	}
	list, err := bindings.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for i := range list.Items {
		b, err := bindingOf(&list.Items[i])
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
	return dash(line)
}
