package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// A format is the value of --output. The zero value is text for people.
type format string

const (
	asJSON format = "json"
	asYAML format = "yaml"
	asName format = "name"
	asWide format = "wide"
)

// encoded reports whether the format is for programs.
func (f format) encoded() bool { return f != "" && f != asWide }

// objectFormats are the formats of a command that prints objects.
func objectFormats() []format { return []format{asJSON, asYAML, asName} }

// tableFormats are the formats of a command that prints a table of objects.
func tableFormats() []format { return append(objectFormats(), asWide) }

// A formatFlag is the flag --output of a command that has certain formats.
type formatFlag struct {
	*format
	allowed []format
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
	if !slices.Contains(f.allowed, format(text)) {
		return fmt.Errorf("must be one of %s", strings.Join(f.names(), ", "))
	}
	*f.format = format(text)
	return nil
}

// String implements pflag.Value. pflag calls it on a zero value, too.
func (f formatFlag) String() string {
	if f.format == nil {
		return ""
	}
	return string(*f.format)
}

// Type implements pflag.Value.
func (formatFlag) Type() string { return "format" }

// outputFlag adds the flag --output with these formats to cmd.
func outputFlag(cmd *cobra.Command, f *format, allowed []format) {
	value := formatFlag{f, allowed}
	cmd.Flags().VarP(value, "output", "o", "Output format: "+strings.Join(value.names(), ", ")+". (default text)")
	completeFlag(cmd, "output", cobra.FixedCompletions(value.names(), cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag sets the completions of a flag of cmd.
func completeFlag(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // the flag does not exist, or has completions already
	}
}

// result prints value in the format f; the format "name" prints names instead.
func (p *printer) result(f format, value any, names ...string) error {
	switch f {
	case asName:
		for _, name := range names {
			p.say("%s", name)
		}
		return nil
	case asYAML:
		text, err := yaml.Marshal(value)
		if err == nil {
			_, err = p.out.Write(text)
		}
		return err
	default:
		text, err := json.MarshalIndent(value, "", "    ")
		if err == nil {
			p.say("%s", text)
		}
		return err
	}
}

// aside returns the printer for messages beside a result in the format f. If the result
// is for programs, messages go to standard error.
func (p *printer) aside(f format) *printer {
	if !f.encoded() {
		return p
	}
	return &printer{p.err, p.err}
}
