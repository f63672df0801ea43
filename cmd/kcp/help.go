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

// A section is a group of related flags in the help.
type section struct {
	title string
	flags []string // names; * stands for any part of one
}

// sections returns the sections of the flags of start. The first section with a matching
// pattern gets a flag.
func sections() []section {
	return []section{
		{"The server", []string{"root-directory", "bind-address", "secure-port", "shard-external-url", "external-hostname", "peer-*", "kubeconfig-path"}},
		{"Data", []string{"etcd-*", "embedded-etcd-*"}},
		{"Workspaces", []string{"*home-workspaces*", "mount-proxy-*", "tenant-egress-*", "sync-target-*"}},
		{"Authentication", []string{"anonymous-auth", "api-audiences", "authentication-*", "client-ca-file", "oidc-*", "requestheader-*", "service-account-*", "token-auth-file"}},
		{"Authorization and admission", []string{"authorization-*", "enable-admission-plugins", "disable-admission-plugins"}},
		{"Certificates and connections", []string{"cert-dir", "tls-*", "http2-*", "disable-http2-serving", "permit-*", "cors-*", "strict-transport-*"}},
		{"Limits and shutdown", []string{"max-*", "min-*", "request-timeout", "event-ttl", "conversion-cel-transformation-timeout", "delete-collection-workers", "tenant-storage-percent", "logical-cluster-total-object-limit", "goaway-chance", "livez-*", "shutdown-*"}},
		{"Encryption at rest", []string{"encryption-*"}},
		{"Audit log", []string{"audit-*"}},
		{"Logs, traces and profiles", []string{"v", "vmodule", "logging-*", "log-*", "tracing-*", "profil*", "contention-profiling", "debug-socket-path"}},
		{"Help", []string{"help"}},
		{"Feature gates", []string{"feature-gates"}}, // last, as the list is long
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

// printFlags prints the flags of start by section, wrapped at the width of the terminal.
func printFlags(out io.Writer, f *pflag.FlagSet) error {
	width, _, err := term.TerminalSize(os.Stdout) // out may be a buffer
	if err != nil {
		width = 0 // not a terminal: do not wrap
	}
	for _, s := range inSections(f) {
		if _, err := fmt.Fprintf(out, "\n%s:\n%s", s.Name(), s.FlagUsagesWrapped(width)); err != nil {
			return err
		}
	}
	return nil
}

// usage prints the usage of start.
func usage(cmd *cobra.Command) error {
	out := cmd.OutOrStderr()
	if _, err := fmt.Fprintf(out, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example); err != nil {
		return err
	}
	return printFlags(out, cmd.Flags())
}

// optionsCommand returns the command that prints only the flags of start.
func optionsCommand(start *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:               "options",
		Short:             "Print the flags of kcp start",
		Long:              "Print the flags of kcp start, by section.",
		Example:           "  kcp options",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "Flags of kcp start:")
			if err == nil {
				err = printFlags(cmd.OutOrStdout(), start.Flags())
			}
			return err
		},
	}
}

// flagsAlone refuses arguments of start. Usually they are the value of a boolean flag.
func flagsAlone(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("usage: %s start [flags]; got argument %q; write the value of a boolean flag after =, as in --profiling=false", self(), args[0])
}

// misplaced explains an error in the flags of kcp without a subcommand.
func misplaced(start *cobra.Command) func(*cobra.Command, error) error {
	return func(_ *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && start.Flags().Lookup(unknown.GetSpecifiedName()) != nil {
			return fmt.Errorf("%w; it is a flag of %s start", err, self())
		}
		return fmt.Errorf("%w; see %s --help", err, self())
	}
}

// complete adds completions for the values of the flags of start.
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

// must panics on an error that only a mistake in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
