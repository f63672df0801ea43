package command

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
)

// Anonymous is the user name of requests without credentials.
const Anonymous = "system:anonymous"

// withAdvice makes cmd and its subcommands add advice to their errors.
func withAdvice(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if todo := advice(err, impersonated(cmd)); todo != "" {
				return fmt.Errorf("%w\n%s", err, todo)
			}
			return err
		}
	}
	for _, below := range cmd.Commands() {
		withAdvice(below)
	}
}

// impersonated returns the arguments of "ws explain" about the user of --as and --as-group. They are those for the
// access of another user: with --as, the user would also need access to the explanation.
func impersonated(cmd *cobra.Command) (as string) {
	user, err := cmd.Flags().GetString("as")
	if err != nil || user == "" {
		return ""
	}
	as = " --for " + output.ShellWord(user)
	groups, err := cmd.Flags().GetStringArray("as-group")
	if err != nil {
		return as
	}
	for _, of := range groups {
		as += " --for-group " + output.ShellWord(of)
	}
	return as
}

// WithUsage makes cmd and its subcommands print their usage line when they get arguments
// that they do not accept.
func WithUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) == nil {
				return nil
			}
			return Misused(cmd, args)
		}
	}
	for _, below := range cmd.Commands() {
		WithUsage(below)
	}
}

// typos is the edit distance within which a misspelled command is recognized.
const typos = 2

// fewCommands is how many commands an error lists at most.
const fewCommands = 2

// available returns the names of the visible subcommands of cmd.
func available(cmd *cobra.Command) []string {
	var names []string
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() && below.Name() != "help" {
			names = append(names, below.Name())
		}
	}
	return names
}

// Misused returns the error of a command that does not accept args.
func Misused(cmd *cobra.Command, args []string) error {
	path := cmd.CommandPath()
	message := fmt.Sprintf("usage: %s; got %s", cmd.UseLine(), output.Count(len(args), "argument"))
	if cmd.HasAvailableSubCommands() && len(args) > 0 {
		cmd.SuggestionsMinimumDistance = typos
		message = fmt.Sprintf("there is no command %q", path+" "+args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			message += fmt.Sprintf("; did you mean %q?", path+" "+near[0])
		} else if few := available(cmd); len(few) <= fewCommands {
			message += fmt.Sprintf("; use %q", path+" "+strings.Join(few, "|"))
		}
	}
	return fmt.Errorf("%s\nSee '%s --help' for usage", message, path)
}

// advice returns what to do about an error that does not say it: the server cannot be
// reached, or refused the request. It is empty for all other errors. as are the arguments of "ws explain" for the
// user of --as.
func advice(err error, as string) string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var operation *net.OpError
	var lookup *net.DNSError
	switch {
	case err == nil:
	case apierrors.IsUnauthorized(err):
		return "your credentials are missing, wrong or expired: log in again, or check the user of your context with kubectl config view --minify"
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `"`+Anonymous+`"`):
		return "you are not logged in: the current context has no credentials; see kubectl config view --minify"
	case apierrors.IsForbidden(err) && strings.HasSuffix(err.Error(), "access denied"):
		return "to see why, run: kubectl ws explain" + remote.WorkspaceOf(err) + as
	case errors.As(err, &unknown):
		return "the certificate authority in the kubeconfig did not sign the server's certificate; if the server was installed again, get its new kubeconfig"
	case errors.As(err, &host):
		return "the server's certificate is not valid for this host name; see the server of the context with kubectl config view --minify"
	case errors.As(err, &lookup), errors.As(err, &operation) && operation.Op == "dial":
		return "no server answers there: is it running, and is the context the right one? See kubectl config view --minify"
	}
	return ""
}
