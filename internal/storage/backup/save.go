package backup

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Save copies a backup that open opens to a file, and checks it on the way. The file must not exist. After an
// error there is none. If the file cannot be written, open is not called. progress is called with the number of keys
// so far and in all.
func Save(open func() (io.ReadCloser, error), file string, progress func(keys, all int64)) (header Header, err error) {
	if _, err := os.Lstat(file); err == nil {
		return Header{}, fmt.Errorf("%s exists; choose another file", file)
	}
	partial := file + ".partial"
	out, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return Header{}, fmt.Errorf("%w; another backup is being made, or was interrupted: then delete the file", err)
	}
	if err != nil {
		return Header{}, err
	}
	if header, err = copyTo(out, open, progress); err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(partial, file)
	}
	if err != nil {
		return Header{}, errors.Join(err, os.Remove(partial))
	}
	return header, nil
}

func copyTo(out io.Writer, open func() (io.ReadCloser, error), progress func(keys, all int64)) (header Header, err error) {
	from, err := open()
	if err != nil {
		return Header{}, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	r, err := NewReader(io.TeeReader(from, out))
	if err != nil {
		return Header{}, err
	}
	return r.Header, r.Check(func(keys int64) { progress(keys, r.Header.Keys) })
}
