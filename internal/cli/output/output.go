package output

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// A Format is the value of --output. The zero value is text for people.
type Format string

// Formats besides text for people.
const (
	JSON Format = "json"
	YAML Format = "yaml"
	Name Format = "name"
	Wide Format = "wide"
)

// Encoded reports whether the format is for programs.
func (f Format) Encoded() bool { return f != "" && f != Wide }

// ObjectFormats are the formats of a command that prints objects.
func ObjectFormats() []Format { return []Format{JSON, YAML, Name} }

// TableFormats are the formats of a command that prints a table of objects.
func TableFormats() []Format { return append(ObjectFormats(), Wide) }

// A formatFlag is the flag --output of a command that has certain formats.
type formatFlag struct {
	*Format
	allowed []Format
}

func (f formatFlag) names() []string {
	var names []string
	for _, a := range f.allowed {
		names = append(names, string(a))
	}
	return names
}

// Set implements pflag.Value.
func (f formatFlag) Set(text string) error {
	if !slices.Contains(f.allowed, Format(text)) {
		return fmt.Errorf("must be one of %s", strings.Join(f.names(), ", "))
	}
	*f.Format = Format(text)
	return nil
}

// String implements pflag.Value. pflag calls it on a zero value, too.
func (f formatFlag) String() string {
	if f.Format == nil {
		return ""
	}
	return string(*f.Format)
}

// Type implements pflag.Value.
func (formatFlag) Type() string { return "format" }

// Flag adds the flag --output with these formats to cmd. Its default is what f has, or text.
func Flag(cmd *cobra.Command, f *Format, allowed []Format) {
	value := formatFlag{f, allowed}
	usage := "Output format: " + strings.Join(value.names(), ", ") + "."
	if *f == "" {
		usage += " (default text)"
	}
	cmd.Flags().VarP(value, "output", "o", usage)
	CompleteFlag(cmd, "output", cobra.FixedCompletions(value.names(), cobra.ShellCompDirectiveNoFileComp))
}

// CompleteFlag sets the completions of a flag of cmd.
func CompleteFlag(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // the flag does not exist, or has completions already
	}
}

// Result prints value in the format f; the format "name" prints names instead.
func (p *Printer) Result(f Format, value any, names ...string) error {
	switch f {
	case Name:
		for _, name := range names {
			p.Say("%s", name)
		}
		return nil
	case YAML:
		text, err := yaml.Marshal(value)
		if err == nil {
			_, err = p.Out.Write(text)
		}
		return err
	default:
		text, err := json.MarshalIndent(value, "", "    ")
		if err == nil {
			p.Say("%s", text)
		}
		return err
	}
}

// Aside returns the printer for messages beside a result in the format f. If the result
// is for programs, messages go to standard error.
func (p *Printer) Aside(f Format) *Printer {
	if !f.Encoded() {
		return p
	}
	return &Printer{p.err, p.err}
}
