package kubeconfig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const (
	// lockWithin is the timeout for the lock of the kubeconfig. A program that was killed
	// leaves its lock behind, so there must be an error in the end.
	lockWithin = 10 * time.Second

	// lockEvery is the interval between attempts to take a lock.
	lockEvery = 20 * time.Millisecond

	// Private is the mode of files with credentials in them.
	Private fs.FileMode = 0o600
)

// change applies f to the kubeconfig and writes its changes: contexts, clusters and the
// current context. It takes the same lock files as kubectl. The library of kubectl takes
// them only to write, and so would undo concurrent changes. Here the files are read,
// changed and written under one lock.
func (s *Session) change(ctx context.Context, f func(*api.Config)) error {
	unlock, err := lock(ctx, s.Access.GetLoadingPrecedence(), s.lockWithin)
	if err != nil {
		return err
	}
	defer unlock()
	before, err := s.Access.GetStartingConfig()
	if err != nil {
		return fmt.Errorf("cannot read the kubeconfig again: %w", err)
	}
	after := before.DeepCopy()
	f(after)
	return save(s.Access.GetDefaultFilename(), before, after)
}

// lock takes the locks of files, in the order that all programs use, and returns a function
// that releases them. It skips a file whose lock cannot be created: that file cannot be
// written either, which is an error only if it changes.
func lock(ctx context.Context, files []string, within time.Duration) (unlock func(), err error) {
	var locked []string
	unlock = func() {
		for _, name := range locked {
			_ = os.Remove(name) // a user may have removed it already
		}
	}
	for _, file := range slices.Compact(slices.Sorted(slices.Values(files))) {
		name := file + ".lock"
		switch err := create(ctx, name, within); {
		case err == nil:
			locked = append(locked, name)
		case errors.Is(err, fs.ErrExist):
			unlock()
			return nil, fmt.Errorf("the kubeconfig is locked: %s has existed for %s; if no other program is changing the kubeconfig, remove that file", name, within)
		case ctx.Err() != nil:
			unlock()
			return nil, ctx.Err()
		}
	}
	return unlock, nil
}

// create creates an empty file, and waits for as long as a file of that name exists.
func create(ctx context.Context, name string, within time.Duration) error {
	var again <-chan time.Time
	var over <-chan time.Time
	for {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0)
		if err == nil {
			return f.Close()
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		if again == nil { // the first attempt usually succeeds
			tick, limit := time.NewTicker(lockEvery), time.NewTimer(within)
			defer tick.Stop()
			defer limit.Stop()
			again, over = tick.C, limit.C
		}
		select {
		case <-again:
		case <-over:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// save writes the differences between before and after to the files they belong to. New
// entries go to the file newcomers.
func save(newcomers string, before, after *api.Config) error {
	e := edits{newcomers, map[string]*api.Config{}}
	err := e.add(before, after)
	for file, c := range e.files {
		if err == nil {
			err = write(file, c)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	return nil
}

// An edits holds the files of a kubeconfig that change, with their new content.
type edits struct {
	newcomers string
	files     map[string]*api.Config
}

// in returns the content of a file, for changes.
func (e edits) in(file string) (*api.Config, error) {
	if c := e.files[file]; c != nil {
		return c, nil
	}
	c, err := clientcmd.LoadFromFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		c, err = api.NewConfig(), nil
	}
	if err == nil {
		e.files[file] = c
	}
	return c, err
}

// add adds the differences between before and after.
func (e edits) add(before, after *api.Config) error {
	for name, cl := range after.Clusters {
		if reflect.DeepEqual(cl, before.Clusters[name]) {
			continue
		}
		cl = cl.DeepCopy()
		cl.LocationOfOrigin = cmp.Or(cl.LocationOfOrigin, e.newcomers)
		c, err := e.in(cl.LocationOfOrigin)
		if err == nil {
			err = clientcmd.RelativizeClusterLocalPaths(cl)
		}
		if err != nil {
			return err
		}
		c.Clusters[name] = cl
	}
	for name, entry := range after.Contexts {
		if reflect.DeepEqual(entry, before.Contexts[name]) {
			continue
		}
		c, err := e.in(cmp.Or(entry.LocationOfOrigin, e.newcomers))
		if err != nil {
			return err
		}
		c.Contexts[name] = entry
	}
	if after.CurrentContext != before.CurrentContext {
		c, err := e.in(e.newcomers)
		if err != nil {
			return err
		}
		c.CurrentContext = after.CurrentContext
	}
	return nil
}

// write replaces a kubeconfig atomically. If the file cannot be replaced, because it is a
// mount point or has another owner, write overwrites it.
func write(file string, c *api.Config) error {
	text, err := clientcmd.Write(*c)
	if err != nil {
		return err
	}
	if replaceFile(file, text) == nil {
		return nil
	}
	err = os.WriteFile(file, text, Private)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w; work on a copy: cp %s my.kubeconfig && export KUBECONFIG=$PWD/my.kubeconfig", err, file)
	}
	return err
}

// replaceFile replaces the content of file, and keeps its mode and its owner.
func replaceFile(file string, text []byte) (err error) {
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target
	}
	mode := Private
	old, err := os.Stat(file)
	switch {
	case err == nil && !owned(old):
		return fs.ErrPermission
	case err == nil:
		mode = old.Mode().Perm()
		if w, err := os.OpenFile(file, os.O_WRONLY, 0); err != nil {
			return err // permission to write the directory is not permission to change the file
		} else if err := w.Close(); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
