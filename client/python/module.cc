// The module kvlarder._core, and how a Status becomes an exception.
#include "client/python/binding.h"

namespace larder::python {

namespace {

PyObject* ExceptionOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return PyExc_ValueError;
    case absl::StatusCode::kNotFound:
      return PyExc_LookupError;
    case absl::StatusCode::kDeadlineExceeded:
      return PyExc_TimeoutError;
    case absl::StatusCode::kUnavailable:
      return PyExc_ConnectionError;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return PyExc_PermissionError;
    default:
      return PyExc_RuntimeError;
  }
}

}  // namespace

void Raise(const absl::Status& status) {
  const std::string sentence(status.message()), code(absl::StatusCodeToString(status.code()));
  nb::object exception = nb::handle(ExceptionOf(status.code()))(sentence);
  exception.attr("code") = code;
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace larder::python

NB_MODULE(_core, module) {
  // At the end of the interpreter, objects of modules that end later still live.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = LARDER_VERSION;
  module.doc() = "Larder's planner, scheduler and client; the C++ headers specify them.";
  larder::python::BindCosts(module);
  larder::python::BindPlan(module);
  larder::python::BindRequests(module);
  larder::python::BindScheduler(module);
  larder::python::BindPages(module);
  larder::python::BindClient(module);
  larder::python::BindEngine(module);
  larder::python::BindRestorer(module);
  larder::python::BindClaims(module);
}
