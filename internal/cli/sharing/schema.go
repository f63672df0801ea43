package sharing

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	// keptObjects is the number of broken objects that a check prints in JSON and YAML, and
	// shownObjects that of its table.
	keptObjects  = 1000
	shownObjects = 20
)

// SchemaCommand returns the command "kubectl kcp schema".
func SchemaCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Change the schemas of exported APIs",
		Long:  "Check whether new schemas of an APIExport would break objects of its consumers.",
		Example: `  # Find out which objects a schema would break
  kubectl kcp schema check widgets -f schema.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(schemaCheckCommand(a))
	return cmd
}

func schemaCheckCommand(a *command.App) *cobra.Command {
	var files []string
	var f output.Format
	cmd := &cobra.Command{
		Use:   "check EXPORT [SCHEMA...] [-f FILE]",
		Short: "Find out which objects a schema would break",
		Long: `Check whether new schemas of an APIExport would break stored objects of its consumers. The command changes nothing. Name APIResourceSchemas in the workspace of the APIExport, or give a file with APIResourceSchemas or CustomResourceDefinitions. The file may also have APIConversions.

An object breaks if it becomes unreadable or invalid, or if it loses a field. The command fails if one does. Without a schema, it prints in which versions objects are stored, and were written.

You need the verb "list" on apiexports/content in the workspace of the APIExport.`,
		Example: `  # Check a schema before it is created
  kubectl kcp schema check widgets -f schema.yaml

  # Check the schema that the APIExport would have next, and print all that is known
  kubectl kcp schema check widgets v2.widgets.example.com -o json

  # Find out who uses which version
  kubectl kcp schema check root:provider:widgets`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.CompleteExport,
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "File with schemas, as YAML or JSON; - for standard input. The flag may be repeated.")
	output.Flag(cmd, &f, []output.Format{output.JSON, output.YAML})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		check := &apis.APIExportCheck{TypeMeta: metav1.TypeMeta{APIVersion: apis.GroupVersion.String(), Kind: "APIExportCheck"}}
		check.Spec.Schemas = args[1:]
		for _, file := range files {
			if err := readCandidates(a, file, &check.Spec); err != nil {
				return fmt.Errorf("cannot read %s: %w", file, err)
			}
		}
		return schemaCheck(cmd.Context(), a, args[0], check, f)
	}
	return cmd
}

// readCandidates adds the schemas and conversions of a file to a check.
func readCandidates(a *command.App, file string, to *apis.APIExportCheckSpec) error {
	in := a.Streams.In
	if file != "-" {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		in = bytes.NewReader(text)
	}
	documents := utilyaml.NewYAMLOrJSONDecoder(in, 4096)
	before := len(to.Candidates)
	for {
		var document runtime.RawExtension
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF) && len(to.Candidates) == before:
			return errors.New("it has no APIResourceSchema")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := readCandidate(a, document.Raw, to); err != nil {
			return err
		}
	}
}

func readCandidate(a *command.App, text []byte, to *apis.APIExportCheckSpec) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return err
	}
	switch gv := apis.GroupVersion; kind.GroupVersionKind() {
	case gv.WithKind("APIResourceSchema"):
		var s apis.APIResourceSchema
		if err := yaml.UnmarshalStrict(text, &s); err != nil {
			return err
		}
		to.Candidates = append(to.Candidates, s)
		return nil
	case gv.WithKind("APIConversion"):
		var c apis.APIConversion
		if err := yaml.UnmarshalStrict(text, &c); err != nil {
			return err
		}
		to.Conversions = append(to.Conversions, c)
		return nil
	}
	definitions, err := definitionsOf(a, text)
	for _, crd := range definitions {
		s, err := apis.FromCustomResourceDefinition(crd, "candidate")
		if err != nil {
			return err
		}
		to.Candidates = append(to.Candidates, *s)
	}
	return err
}

func schemaCheck(ctx context.Context, a *command.App, ref string, check *apis.APIExportCheck, f output.Format) error {
	srv, path, name, err := openExport(ctx, a, ref)
	if err != nil {
		return err
	}
	export, err := getExport(ctx, srv, path, name)
	if err != nil {
		return remote.About(path, "cannot check export %q: %w", ref, err)
	}
	names := len(check.Spec.Schemas) + len(check.Spec.Candidates)
	if err := postCheck(ctx, srv, remote.CheckService+"/"+string(cluster.Of(export))+"/"+name, check); err != nil {
		return remote.About(path, "cannot check export %q: %w", ref, err)
	}
	s := check.Status
	if f.Encoded() {
		err = a.Print.Result(f, check)
	} else {
		printCheck(a, ref, &s, names > 0)
	}
	if err == nil && (s.Broken > 0 || len(s.Problems) > 0) {
		err = fmt.Errorf("the schemas break objects of consumers of export %q", ref)
	}
	return err
}

// postCheck runs all parts of a check, and leaves their sum in its status.
func postCheck(ctx context.Context, s *remote.Server, service string, check *apis.APIExportCheck) error {
	ask := *check
	sum := &check.Status
	for {
		answer := &apis.APIExportCheck{}
		if err := s.Post(ctx, service, &ask, answer); err != nil {
			return err
		}
		sum.Add(&answer.Status, keptObjects)
		if ask.Spec.Continue = answer.Status.Continue; ask.Spec.Continue == "" {
			return nil
		}
	}
}

// printCheck prints the result of a check for people.
func printCheck(a *command.App, ref string, s *apis.APIExportCheckStatus, schemas bool) {
	if schemas {
		a.Print.Say("Export %s: %s, %s checked, %d would break.", ref, output.Count(int(s.Consumers), "consumer"), output.Count(int(s.Checked), "object"), s.Broken)
	} else {
		a.Print.Say("Export %s: %s, %s.", ref, output.Count(int(s.Consumers), "consumer"), output.Count(int(s.Checked), "object"))
	}
	for _, p := range s.Problems {
		a.Print.Say("Breaks all objects of %s", p)
	}
	if s.Unreadable > 0 {
		a.Print.Note("Note: %d objects cannot be read with the schemas in use either, and were not checked.", s.Unreadable)
	}
	for _, n := range s.Notes {
		a.Print.Note("Note: %s.", n)
	}
	if len(s.Causes) > 0 {
		rows := [][]string{{"RESOURCE", "CAUSE", "FIELD", "OBJECTS", "MESSAGE"}}
		for _, c := range s.Causes {
			rows = append(rows, []string{resourceOf(c.Group, c.Resource), string(c.Reason), output.OrDash(c.Field), fmt.Sprint(c.Objects), c.Message})
		}
		a.Print.Say("")
		a.Print.Table(rows)
	}
	if len(s.BrokenObjects) > 0 {
		rows := [][]string{{"WORKSPACE", "OBJECT", "CAUSE", "FIELD", "VERSION"}}
		for _, o := range s.BrokenObjects[:min(len(s.BrokenObjects), shownObjects)] {
			for _, b := range o.Breaks {
				rows = append(rows, []string{cmp.Or(o.Path, o.Cluster), objectOf(o), string(b.Reason), output.OrDash(b.Field), b.Version})
			}
		}
		a.Print.Say("")
		a.Print.Table(rows)
		if s.Broken > shownObjects {
			a.Print.Note("These are %d of %d objects; -o json prints more.", shownObjects, s.Broken)
		}
	}
	printVersions(a, s)
}

// printVersions prints which versions are in use and by whom, those that end in detail.
func printVersions(a *command.App, s *apis.APIExportCheckStatus) {
	becomes := map[apis.VersionEnd]string{apis.VersionServed: "stays", apis.VersionNotServed: "not served any more", apis.VersionRemoved: "removed"}
	rows := [][]string{{"RESOURCE", "VERSION", "STORED", "WRITTEN", "WORKSPACES"}}
	ends := slices.ContainsFunc(s.Versions, func(v apis.VersionUse) bool { return v.End != apis.VersionServed })
	if ends {
		rows[0] = append(rows[0], "BECOMES")
	}
	for _, v := range s.Versions {
		row := []string{resourceOf(v.Group, v.Resource), v.Version, fmt.Sprint(v.Stored), fmt.Sprint(v.Managed), usersOf(v)}
		if ends {
			row = append(row, becomes[v.End])
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		a.Print.Say("")
		a.Print.Table(rows)
	}
}

// usersOf names the consumers that use a version, at most three.
func usersOf(v apis.VersionUse) string {
	names := map[string]bool{}
	for _, c := range v.Consumers {
		names[cmp.Or(c.Path, c.Cluster)] = true
	}
	all := slices.Sorted(maps.Keys(names))
	if len(all) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:3], ", "), len(all)-3)
	}
	return strings.Join(all, ", ")
}

func resourceOf(group, resource string) string {
	return schema.GroupResource{Group: group, Resource: resource}.String()
}

func objectOf(o apis.BrokenObject) string {
	if o.Namespace == "" {
		return o.Resource + "/" + o.Name
	}
	return o.Resource + "/" + o.Name + " -n " + o.Namespace
}
