package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/term"
)

// A section is a part of the help on flags: those that one thinks of together.
type section struct {
	title string
	flags []string // names; * stands for any part of one
}

// sections are what start has flags for. A flag is in the first that names it.
func sections() []section {
	return []section{
		{"The server", []string{"root-directory", "bind-address", "secure-port", "shard-external-url", "external-hostname", "kubeconfig-path", "feature-gates"}},
		{"Where the data is", []string{"etcd-*", "embedded-etcd-*"}},
		{"Workspaces", []string{"*home-workspaces*", "mount-proxy-*", "tenant-egress-*"}},
		{"Who is let in", []string{"anonymous-auth", "api-audiences", "authentication-*", "client-ca-file", "oidc-*", "requestheader-*", "service-account-*", "token-auth-file"}},
		{"Who may do what", []string{"authorization-*", "enable-admission-plugins", "disable-admission-plugins"}},
		{"Certificates and connections", []string{"cert-dir", "tls-*", "http2-*", "disable-http2-serving", "permit-*", "cors-*", "strict-transport-*"}},
		{"Limits, and how the server ends", []string{"max-*", "min-*", "request-timeout", "event-ttl", "delete-collection-workers", "goaway-chance", "livez-*", "shutdown-*"}},
		{"Encryption at rest", []string{"encryption-*"}},
		{"Audit log", []string{"audit-*"}},
		{"Log, traces and profiles", []string{"v", "vmodule", "logging-*", "log-*", "tracing-*", "profil*", "contention-profiling", "debug-socket-path"}},
		{"Help", []string{"help"}},
	}
}

// has reports whether s has a flag of that name.
func (s section) has(name string) bool {
	for _, pattern := range s.flags {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return true
		}
	}
	return false
}

// inSections returns the flags of each section.
func inSections(f *pflag.FlagSet) []*pflag.FlagSet {
	all := make([]*pflag.FlagSet, len(sections()))
	for i, s := range sections() {
		all[i] = pflag.NewFlagSet(s.title, pflag.ContinueOnError)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		for i, s := range sections() {
			if s.has(flag.Name) {
				all[i].AddFlag(flag)
				return
			}
		}
	})
	return all
}

// printFlags prints the flags of start by section, in lines as long as the terminal has.
func printFlags(out io.Writer, f *pflag.FlagSet) error {
	width, _, err := term.TerminalSize(os.Stdout) // out may be a buffer for it
	if err != nil {
		width = 0 // not a terminal: lines have no end
	}
	for _, s := range inSections(f) {
		if _, err := fmt.Fprintf(out, "\n%s:\n%s", s.Name(), s.FlagUsagesWrapped(width)); err != nil {
			return err
		}
	}
	return nil
}

// usage prints how start is used.
func usage(cmd *cobra.Command) error {
	out := cmd.OutOrStderr()
	if _, err := fmt.Fprintf(out, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example); err != nil {
		return err
	}
	return printFlags(out, cmd.Flags())
}

// optionsCommand prints the flags of start alone.
func optionsCommand(start *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:               "options",
		Short:             "Print the flags that a server can be started with",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "These flags can be given to kcp start:")
			if err == nil {
				err = printFlags(cmd.OutOrStdout(), start.Flags())
			}
			return err
		},
	}
}

// flagsAlone refuses what comes with the flags of start. It is most often the value of a
// flag that is true or false.
func flagsAlone(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%s start takes flags and nothing else, but was given %q; a flag that is true or false takes its value with =, as in --profiling=false", self(), args[0])
}

// misplaced explains an error in flags without a command.
func misplaced(start *cobra.Command) func(*cobra.Command, error) error {
	return func(_ *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && start.Flags().Lookup(unknown.GetSpecifiedName()) != nil {
			return fmt.Errorf("%w; it is a flag of %s start", err, self())
		}
		return fmt.Errorf("%w; see %s --help", err, self())
	}
}

// complete has shells complete the values of flags of start.
func complete(cmd *cobra.Command) {
	for name, values := range map[string][]string{
		"logging-format":                       {"text", "json"},
		"authorization-order":                  {"AlwaysAllowGroups,AlwaysAllowPaths,RBAC,Webhook"},
		"authorization-webhook-version":        {"v1", "v1beta1"},
		"authentication-token-webhook-version": {"v1", "v1beta1"},
		"tls-min-version":                      {"VersionTLS12", "VersionTLS13"},
		"audit-log-format":                     {"json", "legacy"},
		"audit-log-mode":                       {"batch", "blocking", "blocking-strict"},
		"audit-webhook-mode":                   {"batch", "blocking", "blocking-strict"},
		"bind-address":                         {"127.0.0.1", "0.0.0.0", "::"},
	} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
	for _, name := range []string{"root-directory", "cert-dir", "embedded-etcd-directory"} {
		must(cmd.MarkFlagDirname(name))
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// must panics at what only a mistake in this program brings about.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
