// Reads and writes the zip files of torch.save (.pt, .pth, .bin) without torch, and reads
// the files that it wrote before torch 1.6 (torch_legacy.cpp).
//
// A file is a zip archive with one folder: data.pkl is the saved object as a pickle,
// data/<k> has the bytes of storage k, and byteorder, version and some others are small
// records. The pickle is read as data (pickle_reader.h): nothing is imported or called.
//
// A tensor is named by its path, joined with dots: {"model": {"fc.weight": t}} has the
// tensor model.fc.weight, a list has 0, 1, ..., and a file that is one bare tensor has
// "tensor". contents.objects is the tree with these names as leaves. Values that Object
// cannot represent become the nearest one that it can:
//   OrderedDict   a dict; its attributes, such as _metadata, are dropped
//   defaultdict   a dict
//   Parameter     a tensor, and so are Buffer and other subclasses
//   storage       a tensor of one dimension
//   bytearray     bytes
//   torch.Size    a tuple
//   torch.dtype   the text "torch.float32"
//   torch.device  the text "cuda:0"
//   numpy scalar  a number
//
// An object of any other class is never made, but the data that it would be made of can
// be read, with its tensors. The object becomes a dict with "__class__", the name of
// the class, and with its attributes; or with "__arguments__", "__items__",
// "__entries__" and "__state__", as far as the pickle has them. A class or function
// that stands alone becomes its name. A sparse, quantized or nested tensor becomes a dict
// of the tensors that it is made of ("w.indices", "w.values"), and so does a subclass that
// wraps other tensors. contents.simplified lists all such objects.
//
// Expanded views, views whose elements share bytes, and conjugated and negated views are
// computed when they are read (computed_views.h). They cannot be patched.
//
// What cannot be read is left out and listed in contents.left_out: tensors without bytes or
// of unknown dtypes, objects that contain themselves or nest deeper than kMaxObjectDepth,
// and calls of unknown functions of torch. It is missing in a dict, and None in a list.
//
// Fails with kUnsupported, naming the place, if nothing but such an object was saved, for
// functions that only an attack would name (os.system), big-endian files and TorchScript.
// Fails with kCorrupt if the file contradicts itself.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// True for the names of the records in a zip archive of torch.
bool is_torch_archive(std::span<const std::string> names);
// True for the first bytes of a file that torch wrote before 1.6.
bool is_legacy_torch(ByteView head);

// Reads the directory and the pickle, but no tensors. If several names refer to the
// same view (same storage, offset, shape, strides and dtype), they are one tensor with
// aliases. Views that overlap in other ways get holders of their own, all of which are
// this file. The CRC of a record is checked when a tensor in it has been read in full
// (contents.h).
Result<Contents> open_torch(std::shared_ptr<const Source> source);

// Reads every record and checks its CRC, in bounded memory. Lists each record that is
// damaged, with the tensors in it. torch can leave CRCs out; then not all is checked.
Result<FormatReport> verify_torch(std::shared_ptr<const Source> source,
                                  const Progress& progress = {});

// Plans a patch (Format::plan_patch). The CRC of a record that changes is made right
// behind the record, in its header and in the directory; a CRC that was left out stays
// so. The record .data/serialization_id, which no reader checks, stays as it is.
Result<Patch> plan_torch_patch(Env& env, const Path& path, std::span<const Flip> flips,
                               Checksums checksums);

// Streams the file in bounded memory. torch.load can read it with weights_only=True and
// with mmap=True. Each tensor has a storage of its own, which its aliases share. All
// tensors are on the CPU and without requires_grad.
//
// The object that torch.load returns is contents.objects with tensors as its leaves.
// Tensors and aliases that have no place in it are added at the top under their names;
// then the top must be a dict. If contents.objects is None, the result is an
// OrderedDict of all names.
//
// Fails with kInvalid if a leaf names no tensor, if text is not UTF-8 and if the tree
// is too deep. Fails with kUnsupported for an integer of more than 255 bytes, because
// torch cannot read it.
Result<void> write_torch(Sink& sink, const Contents& contents);

// The same, but objects of some classes, which are dicts with "__class__" in
// contents.objects, become objects again when torch.load() reads the file: argparse's
// Namespace, the arrays and numbers of numpy, dtypes of torch, and the enumerations of
// Megatron. All other classes stay dicts. Such a file needs weights_only=False.
Result<void> write_torch_with_classes(Sink& sink, const Contents& contents);

}  // namespace holdfast
