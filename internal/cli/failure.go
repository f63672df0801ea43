package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// anonymous is who the server takes those for who do not say who they are.
const anonymous = "system:anonymous"

// withAdvice makes cmd and all below it add advice to what they fail with.
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

// withUsage makes cmd and all below it say how they are used when they are given
// arguments that they do not take.
func withUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) == nil {
				return nil
			}
			return misused(cmd, args)
		}
	}
	for _, below := range cmd.Commands() {
		withUsage(below)
	}
}

// typos is how many letters of a command may be wrong for it to be recognized.
const typos = 2

// misused returns the error of a command that does not take args.
func misused(cmd *cobra.Command, args []string) error {
	path := cmd.CommandPath()
	said := ""
	if cmd.HasAvailableSubCommands() && len(args) > 0 {
		cmd.SuggestionsMinimumDistance = typos
		said = fmt.Sprintf("there is no command %q", path+" "+args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			said += fmt.Sprintf("; did you mean %q?", path+" "+near[0])
		}
	} else {
		usage := strings.TrimSuffix(cmd.UseLine(), " [flags]")
		said = fmt.Sprintf("it is used as %q, and was given %s", usage, counted(len(args), "argument"))
	}
	return fmt.Errorf("%s\nSee '%s --help' for usage", said, path)
}

// counted returns a number of things in words.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// advice returns what to do about an error that says only what went wrong: the
// server cannot be reached, or does not know who asks. It is empty where the error
// has said it, or where there is nothing to do but to read it.
func advice(err error) string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var operation *net.OpError
	var lookup *net.DNSError
	switch {
	case err == nil:
	case apierrors.IsUnauthorized(err):
		return "your credentials are missing, wrong or have ended: log in again, or see what is sent with kubectl config view --minify"
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `"`+anonymous+`"`):
		return "you are not logged in: the context in use has no credentials; see kubectl config view --minify"
	case apierrors.IsForbidden(err) && strings.HasSuffix(err.Error(), "access denied"):
		return "find out why, and what it takes: kubectl ws explain <workspace>"
	case errors.As(err, &unknown):
		return "the certificate of the server is not from the authority in the kubeconfig; if the server was set up anew, get its kubeconfig again"
	case errors.As(err, &host):
		return "the server is not meant to be reached under this name; see the server of the context with kubectl config view --minify"
	case errors.As(err, &lookup), errors.As(err, &operation) && operation.Op == "dial":
		return "no server can be reached there: is it running, and is the context the right one? See kubectl config view --minify"
	}
	return ""
}
