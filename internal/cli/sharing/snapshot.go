package sharing

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
)

// DefinitionsCommand returns the command "kubectl kcp crd".
func DefinitionsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "crd",
		Short: "Work with CustomResourceDefinitions",
		Long:  "Make APIResourceSchemas, which APIExports share, of CustomResourceDefinitions.",
		Example: `  # Make an APIResourceSchema of a CustomResourceDefinition
  kubectl kcp crd snapshot -f crd.yaml --prefix v1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(snapshotCommand(a))
	return cmd
}

func snapshotCommand(a *command.App) *cobra.Command {
	var file, prefix string
	f := output.YAML
	cmd := &cobra.Command{
		Use:   "snapshot -f FILE --prefix PREFIX",
		Short: "Make APIResourceSchemas of CustomResourceDefinitions",
		Long: `Print an APIResourceSchema for each CustomResourceDefinition of a file. Its name is PREFIX.PLURAL.GROUP. An APIResourceSchema never changes, so each state of a definition needs a prefix of its own.

The command sends no requests. Other objects of the file are skipped.`,
		Example: `  # Create the schema of a definition in the current workspace
  kubectl kcp crd snapshot -f crd.yaml --prefix v1 | kubectl create -f -

  # Make a schema of a definition that a workspace has
  kubectl get crd widgets.example.com -o yaml | kubectl kcp crd snapshot -f - --prefix v250101

  # Print it as JSON
  kubectl kcp crd snapshot -f crd.yaml --prefix v1 -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case file == "":
				return errors.New("the file is missing; add -f FILE, or -f - for standard input")
			case prefix == "":
				return errors.New("the prefix is missing; add --prefix PREFIX, such as v1, for the names of the APIResourceSchemas")
			}
			return printSnapshot(a, file, prefix, f)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "filename", "f", "", "File with CustomResourceDefinitions, as YAML or JSON; - for standard input.")
	flags.StringVar(&prefix, "prefix", "", "First part of the names of the APIResourceSchemas: lower-case letters, digits and dashes, with a letter first.")
	output.Flag(cmd, &f, []output.Format{output.YAML, output.JSON})
	return cmd
}

func printSnapshot(a *command.App, file, prefix string, f output.Format) error {
	in, name := a.Streams.In, "standard input"
	if file != "-" {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		in, name = bytes.NewReader(text), file
	}
	all, err := listDefinitions(a, in)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", name, err)
	}
	var schemas []*apis.APIResourceSchema
	for _, crd := range all {
		s, err := apis.FromCustomResourceDefinition(crd, prefix)
		if err != nil {
			return err
		}
		schemas = append(schemas, s)
	}
	for i, s := range schemas {
		if i > 0 && f == output.YAML {
			a.Print.Say("---")
		}
		if err := a.Print.Result(f, s); err != nil {
			return err
		}
	}
	return nil
}

// listDefinitions reads the CustomResourceDefinitions of a file. Lists are read, too.
func listDefinitions(a *command.App, in io.Reader) (all []*apiextensionsv1.CustomResourceDefinition, err error) {
	documents := utilyaml.NewYAMLOrJSONDecoder(in, 4096)
	for {
		var document runtime.RawExtension
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF) && len(all) == 0:
			return nil, errors.New("it has no CustomResourceDefinition")
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		some, err := definitionsOf(a, document.Raw)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
}

// definitionsOf decodes an object that is a CustomResourceDefinition, or a list.
func definitionsOf(a *command.App, text []byte) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var list struct {
		metav1.PartialObjectMetadata `json:",inline"`
		Items                        []runtime.RawExtension `json:"items"`
	}
	if err := yaml.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, item := range list.Items {
		some, err := definitionsOf(a, item.Raw)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	kind := list.GroupVersionKind()
	switch {
	case len(list.Items) > 0 || kind.Empty():
		return all, nil
	case kind.Kind != "CustomResourceDefinition" || kind.Group != apiextensionsv1.GroupName:
		a.Print.Note("note: skipped %s %q: only CustomResourceDefinitions become APIResourceSchemas", kind.Kind, list.Name)
		return nil, nil
	case kind.GroupVersion() != apiextensionsv1.SchemeGroupVersion:
		return nil, fmt.Errorf("CustomResourceDefinition %q has version %s; convert it to %s", list.Name, kind.Version, apiextensionsv1.SchemeGroupVersion.Version)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %q: %w", list.Name, err)
	}
	return []*apiextensionsv1.CustomResourceDefinition{crd}, nil
}
