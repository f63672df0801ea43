package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// A format is how a result is printed for programs. The zero value is for people.
type format string

const (
	asJSON format = "json"
	asYAML format = "yaml"
	asName format = "name"
)

func formats() []string { return []string{string(asJSON), string(asYAML), string(asName)} }

// Set takes the value of the flag, so that a mistake is found before anything is done.
func (f *format) Set(text string) error {
	if !slices.Contains(formats(), text) {
		return fmt.Errorf("it must be one of %s", strings.Join(formats(), ", "))
	}
	*f = format(text)
	return nil
}

func (f *format) String() string { return string(*f) }

// Type is what usage says of the value.
func (*format) Type() string { return "format" }

// outputFlag gives cmd the flag --output, whose value goes to f.
func outputFlag(cmd *cobra.Command, f *format) {
	cmd.Flags().VarP(f, "output", "o", "print the result for programs: "+strings.Join(formats(), ", "))
	completeFlag(cmd, "output", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag makes values the completions of a flag that cmd has.
func completeFlag(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // the flag does not exist, or has completions already
	}
}

// result prints value in the format f, in which it is called by names.
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

// aside returns a printer for what is said beside a result in the format f: to
// people that is the result itself.
func (p *printer) aside(f format) *printer {
	if f == "" {
		return p
	}
	return &printer{p.err, p.err}
}
