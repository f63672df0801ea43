package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/cluster"
)

// anonymous is the user name of requests without credentials.
const anonymous = "system:anonymous"

// withAdvice makes cmd and its subcommands add advice to their errors.
func withAdvice(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if todo := advice(err); todo != "" {
				return fmt.Errorf("%w\n%s", err, todo)
			}
			return err
		}
	}
	for _, below := range cmd.Commands() {
		withAdvice(below)
	}
}

// WithUsage makes cmd and its subcommands print their usage line when they get arguments
// that they do not accept.
func WithUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) == nil {
				return nil
			}
			return misused(cmd, args)
		}
	}
	for _, below := range cmd.Commands() {
		WithUsage(below)
	}
}

// typos is the edit distance within which a misspelled command is recognized.
const typos = 2

// misused returns the error of a command that does not accept args.
func misused(cmd *cobra.Command, args []string) error {
	path := cmd.CommandPath()
	message := fmt.Sprintf("usage: %s; got %s", cmd.UseLine(), counted(len(args), "argument"))
	if cmd.HasAvailableSubCommands() && len(args) > 0 {
		cmd.SuggestionsMinimumDistance = typos
		message = fmt.Sprintf("there is no command %q", path+" "+args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			message += fmt.Sprintf("; did you mean %q?", path+" "+near[0])
		}
	}
	return fmt.Errorf("%s\nSee '%s --help' for usage", message, path)
}

// counted returns a number and a noun in its singular or plural.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// advice returns what to do about an error that does not say it: the server cannot be
// reached, or refused the request. It is empty for all other errors.
func advice(err error) string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var operation *net.OpError
	var lookup *net.DNSError
	switch {
	case err == nil:
	case apierrors.IsUnauthorized(err):
		return "your credentials are missing, wrong or expired: log in again, or check the user of your context with kubectl config view --minify"
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `"`+anonymous+`"`):
		return "you are not logged in: the current context has no credentials; see kubectl config view --minify"
	case apierrors.IsForbidden(err) && strings.HasSuffix(err.Error(), "access denied"):
		return "to see why, run: kubectl ws explain" + workspaceOfError(err)
	case errors.As(err, &unknown):
		return "the certificate authority in the kubeconfig did not sign the server's certificate; if the server was installed again, get its new kubeconfig"
	case errors.As(err, &host):
		return "the server's certificate is not valid for this host name; see the server of the context with kubectl config view --minify"
	case errors.As(err, &lookup), errors.As(err, &operation) && operation.Op == "dial":
		return "no server answers there: is it running, and is the context the right one? See kubectl config view --minify"
	}
	return ""
}

// A workspaceError is an error about one workspace.
type workspaceError struct {
	path cluster.Path
	err  error
}

func (e *workspaceError) Error() string { return e.err.Error() }

func (e *workspaceError) Unwrap() error { return e.err }

// about returns an error, in the format of fmt.Errorf, that knows which workspace it is
// about.
func about(path cluster.Path, format string, args ...any) error {
	return &workspaceError{path, fmt.Errorf(format, args...)}
}

// workspaceOfError returns the workspace that err is about as the argument of a command,
// with a space before it. Without one, the command is about the current workspace.
func workspaceOfError(err error) string {
	var of *workspaceError
	if errors.As(err, &of) {
		return " :" + string(of.path)
	}
	return ""
}
