package child

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
)

// Main runs a program with its arguments, and exits with status 1 if it fails. SIGINT and SIGTERM
// end the context of run.
func Main(program string, run func(ctx context.Context, args []string) error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(1)
	}
}

// Chosen returns the elements whose name matches the value of the flag -run, a regular expression.
// It fails if there are none.
func Chosen[T any](pattern string, all []T, name func(T) string) ([]T, error) {
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	chosen := slices.DeleteFunc(all, func(one T) bool { return !matches.MatchString(name(one)) })
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run=%s matches nothing", pattern)
	}
	return chosen, nil
}
